from hifc_ray.flash.device import pages
def encode_footer(uuid, sequence, keys, fpr): return pages(4096)
