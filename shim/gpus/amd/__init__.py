"""AMD: GPUs through the driver's own library, amdsmi."""
