# One node image from one bundle, in the same steps for every platform. Valid for Packer 1.6.6, which
# knows no `required_plugins`; a newer Packer takes them from plugins/ (see docs/node-images.md).

build {
  sources = [
    "source.qemu.node",
    "source.amazon-ebs.node",
    "source.googlecompute.node",
    "source.hcloud.node",
    "source.azure-arm.node",
  ]

  provisioner "file" {
    source      = var.bundle
    destination = "/tmp/fairlead-node.tar"
  }

  provisioner "file" {
    source      = "${path.root}/files"
    destination = "/tmp"
  }

  provisioner "shell" {
    # Hetzner's images log in as root, and need not have sudo.
    execute_command = "chmod +x {{ .Path }}; $(command -v sudo) env {{ .Vars }} {{ .Path }}"
    environment_vars = [
      "DOCKER=${var.docker}",
      "GPU=${var.gpu}",
      "NVIDIA_DRIVER_BRANCH=${var.nvidia_driver_branch}",
      "NVIDIA_DRIVER_MINIMUM=${var.nvidia_driver_minimum}",
      "NVIDIA_TOOLKIT_MINIMUM=${var.nvidia_toolkit_minimum}",
      "SECURE_BOOT=${var.secure_boot}",
      "NVSWITCH=${var.nvswitch}",
      "INFINIBAND=${var.infiniband}",
      "PEERMEM=${var.infiniband_peermem}",
      "EFA_INSTALLER=${var.efa_installer}",
      "EFA_INSTALLER_SHA256=${var.efa_installer_sha256}",
      "SECURITY_UPDATES=${var.security_updates}",
      "PULL_IMAGES=${join(" ", var.pull_images)}",
      "VOLUME_PREFIXES=${join(" ", var.volume_prefixes)}",
      "REGISTRY_MIRROR=${var.registry_mirror}",
      "JOB_METADATA=${var.job_metadata}",
    ]
    scripts = [
      "${path.root}/steps/system.sh",
      "${path.root}/steps/rdma.sh",
      "${path.root}/steps/gpu.sh",
      "${path.root}/steps/node.sh",
      "${path.root}/steps/updates.sh",
      "${path.root}/steps/images.sh",
      "${path.root}/steps/clean.sh",
    ]
  }
}
