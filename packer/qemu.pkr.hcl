# For hypervisors of your own, from a cloud image of Debian or Ubuntu. The key pair is for the build
# only: cloud-init lets it in, and the last step takes it out.

variable "qemu_base_image" {
  type        = string
  default     = "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2"
  description = "A path or URL of a qcow2 image with cloud-init."
}

variable "qemu_base_checksum" {
  type        = string
  default     = "file:https://cloud.debian.org/images/cloud/bookworm/latest/SHA512SUMS"
  description = "none for a local image that you trust."
}

variable "qemu_accelerator" {
  type        = string
  default     = "kvm"
  description = "tcg where there is no KVM (slow)."
}

variable "qemu_disk_size" {
  type    = string
  default = "20G"
}

variable "qemu_network" {
  type        = string
  default     = ""
  description = "More of QEMU's user network, such as \",restrict=on\" for a base image that needs none."
}

variable "qemu_output" {
  type    = string
  default = "image-qemu"
}

source "qemu" "node" {
  iso_url          = var.qemu_base_image
  iso_checksum     = var.qemu_base_checksum
  disk_image       = true
  disk_size        = var.qemu_disk_size
  format           = "qcow2"
  disk_compression = true
  qemu_binary      = var.architecture == "arm64" ? "qemu-system-aarch64" : "qemu-system-x86_64"
  machine_type     = var.architecture == "arm64" ? "virt" : "pc"
  accelerator      = var.qemu_accelerator
  cpus             = 2
  memory           = 2048
  headless         = true
  net_device       = "virtio-net"
  disk_interface   = "virtio"
  output_directory = var.qemu_output
  vm_name          = "${var.image_name}.qcow2"
  cd_label         = "cidata"
  cd_files         = ["${path.root}/build-seed/meta-data", "${path.root}/build-seed/user-data"]
  ssh_username     = "packer"
  ssh_password     = "packer"
  ssh_timeout      = "20m"
  # The build's password is known: by itself, Packer would forward its port from every interface.
  qemuargs = [
    ["-netdev", "user,id=user.0,hostfwd=tcp:127.0.0.1:{{ .SSHHostPort }}-:22${var.qemu_network}"],
  ]
  shutdown_command = "sudo sh -c 'userdel --force --remove packer; shutdown -P now'"
}
