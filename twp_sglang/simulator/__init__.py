"""A clock of its own in SGLang's place, driving the same policy objects.

The way of one step: :mod:`.engine` forms a batch as SGLang's scheduler does
(:mod:`.prefill` for prompts, :mod:`.rows` for decoding), asking the policy through
:mod:`.policy_driver`; :mod:`.step_models` says how long the step takes; :mod:`.metrics` and
:mod:`.steps` tell. :mod:`.replicas` puts several engines behind a router.
"""
