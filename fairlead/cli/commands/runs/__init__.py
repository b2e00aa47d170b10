"""Commands about runs: submit, list, show and change them."""
