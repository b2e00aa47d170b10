variable "aws_region" {
  type    = string
  default = "us-east-1"
}

variable "aws_instance_type" {
  type        = string
  default     = "m7i.large"
  description = "Of the build; one with a GPU is not needed to install its driver."
}

variable "aws_base_image" {
  type        = string
  default     = "debian-12-amd64-*"
  description = "The name of an AMI, with wildcards; the newest is taken."
}

variable "aws_base_owner" {
  type    = string
  default = "136693071363"
}

source "amazon-ebs" "node" {
  region        = var.aws_region
  instance_type = var.aws_instance_type
  ami_name      = "${var.image_name}-{{timestamp}}"
  ssh_username  = "admin"
  encrypt_boot  = true

  source_ami_filter {
    filters = {
      name                = var.aws_base_image
      architecture        = var.architecture == "arm64" ? "arm64" : "x86_64"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
    owners      = [var.aws_base_owner]
    most_recent = true
  }

  launch_block_device_mappings {
    device_name           = "/dev/xvda"
    volume_size           = 30
    volume_type           = "gp3"
    iops                  = 3000
    throughput            = 125
    delete_on_termination = true
  }
}
