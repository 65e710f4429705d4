"""Starting SGLang under TWP: options, refusals, engine settings, launch."""
