variable "hetzner_token" {
  type        = string
  default     = ""
  description = "An API token of the project that may read and write; without it, HCLOUD_TOKEN."
}

variable "hetzner_location" {
  type    = string
  default = "fsn1"
}

variable "hetzner_server_type" {
  type        = string
  default     = "cx23"
  description = "Of the build; cx23 is in Europe alone. Servers with a smaller disk than its cannot begin from the snapshot."
}

variable "hetzner_base_image" {
  type    = string
  default = "debian-12"
}

# A snapshot has no name at Hetzner: its id is told at the end, and the controller's file takes it.
source "hcloud" "node" {
  token           = var.hetzner_token
  location        = var.hetzner_location
  server_type     = var.hetzner_server_type
  image           = var.hetzner_base_image
  snapshot_name   = "${var.image_name}-{{timestamp}}"
  snapshot_labels = { "fairlead-image" = var.image_name }
  ssh_username    = "root"
}
