"""Window laws, one module each behind the interface of :mod:`controllers.laws.base`."""
