"""Saliency prediction: data sets, networks, losses and metrics.

Each submodule is imported on its own, with only the dependencies that it needs:

    from congruency.saliency import data, metrics, models
    osie = data.osie("data/osie")
    batch = data.collate(osie.viewings[:8], (240, 320))
    saliency = models.create("dinet", "resnet50").eval()(batch.images)
    metrics.nss(saliency, batch.fixations)  # one value per image
"""
