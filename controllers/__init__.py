"""The token window as a feedback loop: laws, models, margins, identification, tuning."""
