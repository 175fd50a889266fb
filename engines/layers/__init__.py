"""The layers that all models share: attention over paged caches, experts, and the decoder made of them."""
