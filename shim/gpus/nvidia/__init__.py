"""NVIDIA's GPUs: `nvml` asks the driver, `xids` says what its errors mean."""
