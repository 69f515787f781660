"""What ranks are fed: documents packed into `bins`, and the `order` and `mix` in which bins come."""
