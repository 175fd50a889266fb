"""The tracing page: takes spans in over OTLP, keeps them, and shows them."""
