"""SGLang hardware platforms that this package adds. Nothing here is imported by the core."""
