variable "google_project" {
  type    = string
  default = "my-project"
}

variable "google_zone" {
  type    = string
  default = "us-central1-a"
}

variable "google_account_file" {
  type        = string
  default     = ""
  description = "A service account's key; without it, the credentials of the machine."
}

variable "google_base_family" {
  type    = string
  default = "debian-12"
}

source "googlecompute" "node" {
  project_id          = var.google_project
  zone                = var.google_zone
  account_file        = var.google_account_file
  source_image_family = var.google_base_family
  machine_type        = var.architecture == "arm64" ? "t2a-standard-2" : "e2-standard-2"
  disk_size           = 30
  image_name          = "${var.image_name}-{{timestamp}}"
  image_family        = var.image_name
  ssh_username        = "packer"
}
