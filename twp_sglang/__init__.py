"""Token Window Pacing for stock SGLang."""
