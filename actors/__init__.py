"""hifc_ray on Ray: a cache tier per node, an inference actor per GPU, a policy actor and a manager per cluster."""
