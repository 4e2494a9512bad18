import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_compilation_cache", False)  # tests compile what they test
