"""Virtual machines: an image is built by Packer and booted with rendered user-data.

`./dev vm-test` runs these tests (root; some 15 minutes without KVM). `base_image` makes what a
cloud offers as its Debian image; `machine` runs it in qemu.
"""
