"""Saliency prediction: where people look. Data sets, networks, losses and metrics.

Each part is imported by its own name, and none imports another's dependencies:

    from congruency.saliency import data, metrics, models
    osie = data.osie("data/osie")
    batch = data.collate(osie.viewings[:8], (240, 320))
    saliency = models.create("dinet", "resnet50").eval()(batch.images)
    metrics.nss(saliency, batch.fixations)  # one value an image
"""
