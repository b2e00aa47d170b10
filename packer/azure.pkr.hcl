variable "azure_subscription" {
  type    = string
  default = ""
}

variable "azure_tenant" {
  type    = string
  default = ""
}

variable "azure_client" {
  type    = string
  default = ""
}

variable "azure_client_secret" {
  type      = string
  default   = ""
  sensitive = true
}

variable "azure_resource_group" {
  type    = string
  default = "fairlead-images"
}

variable "azure_location" {
  type    = string
  default = "westeurope"
}

variable "azure_sku" {
  type    = string
  default = "12-gen2"
}

source "azure-arm" "node" {
  subscription_id                   = var.azure_subscription
  tenant_id                         = var.azure_tenant
  client_id                         = var.azure_client
  client_secret                     = var.azure_client_secret
  managed_image_resource_group_name = var.azure_resource_group
  managed_image_name                = "${var.image_name}-{{timestamp}}"
  location                          = var.azure_location
  os_type                           = "Linux"
  image_publisher                   = "Debian"
  image_offer                       = "debian-12"
  image_sku                         = var.azure_sku
  vm_size                           = "Standard_D2s_v3"
  ssh_username                      = "packer"
}
