"""What decides who is admitted. Pure: no SGLang, no clock; time and measurements come in."""
