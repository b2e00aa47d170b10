# What an operator chooses. `packer build -only=qemu.node -var bundle=FILE packer`

variable "bundle" {
  type        = string
  description = "The file that ./dev bundle makes; it carries Fairlead's version."
}

variable "architecture" {
  type        = string
  default     = "amd64"
  description = "Of machine, base image and bundle: amd64 or arm64."
}

variable "image_name" {
  type    = string
  default = "fairlead-node"
}

variable "docker" {
  type        = string
  default     = "install"
  description = "install: the release's engine; use: the base image brings one."
}

variable "gpu" {
  type        = bool
  default     = false
  description = "Install NVIDIA's driver and container toolkit."
}

variable "secure_boot" {
  type        = string
  default     = "off"
  description = "off, or enrolled: the firmware of the machines has the key with which DKMS signs here. The driver is built for the image, and Secure Boot loads no module with a key that it does not know; a build on a machine with Secure Boot fails."

  validation {
    condition     = contains(["off", "enrolled"], var.secure_boot)
    error_message = "Secure_boot is off or enrolled."
  }
}

variable "nvswitch" {
  type        = bool
  default     = false
  description = "For HGX and DGX boards: also the Fabric Manager, of the driver's very version. Without it CUDA does not start there."
}

variable "infiniband" {
  type        = bool
  default     = false
  description = "For InfiniBand and RoCE: rdma-core, its tools, and the modules that jobs need, at each boot."
}

variable "infiniband_peermem" {
  type        = bool
  default     = false
  description = "Load nvidia_peermem at each boot, for GPUDirect RDMA without DMA-BUF. The base image must have NVIDIA's InfiniBand drivers (DOCA-OFED)."
}

variable "efa_installer" {
  type        = string
  default     = ""
  description = "For Amazon's EFA: the URL of aws-efa-installer-VERSION.tar.gz. Its driver and rdma-core are installed."
}

variable "efa_installer_sha256" {
  type        = string
  default     = ""
  description = "The sha256 of that file."
}

# Raise these when NVIDIA's security bulletins name newer ones.
# Oldest driver of this branch without CVE-2026-24187 (8.8), CVE-2026-24190, CVE-2026-24192 and
# CVE-2026-24193, June 2026. Branch 570 got no repair for them; its last repairs were 570.172.08
# (CVE-2025-23277, CVE-2025-23278) and 570.195.03 (CVE-2025-23280, CVE-2025-23282).
variable "nvidia_driver_branch" {
  type    = string
  default = "580"
}

variable "nvidia_driver_minimum" {
  type    = string
  default = "580.159.03"
}

# Oldest toolkit without CVE-2026-24260 (a race, 8.5), June 2026. Closed before: CVE-2025-23266 and
# CVE-2025-23267 (escape from a container) in 1.17.8, CVE-2025-23359 in 1.17.4, CVE-2024-0132 in
# 1.16.2.
variable "nvidia_toolkit_minimum" {
  type    = string
  default = "1.19.1"
}

variable "security_updates" {
  type        = string
  default     = "security"
  description = "security: installed daily without a reboot; none: the operator renews the image."
}

variable "pull_images" {
  type        = list(string)
  default     = []
  description = "Images that the node has from the beginning."
}

variable "volume_prefixes" {
  type    = list(string)
  default = []
}

variable "registry_mirror" {
  type    = string
  default = ""
}

variable "job_metadata" {
  type        = string
  default     = "closed"
  description = "open: jobs reach the metadata service of a cloud, and with it the node's credentials."
  validation {
    condition     = contains(["open", "closed"], var.job_metadata)
    error_message = "The variable job_metadata is open or closed."
  }
}
