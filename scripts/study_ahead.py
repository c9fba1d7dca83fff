"""What the processes of a study do side by side: trainings, and what is measured of one model."""

import logging
from functools import partial

from vit_tf.scripts import common, reporting, side_by_side, study_models, study_training
from vit_tf.scripts.progress import told_to

log = logging.getLogger("vit_tf.study")


def train_ahead(plans, options, progress, jobs):
    """Trains the models that were not trained before, several at a time, the longest first.

    Args:
        plans: list of `Plan`; one starts when that which it starts from is trained.
        options: of the command line.
        progress: the `Progress`.
        jobs: trainings at a time. One is left to `train_all`, which finds the others trained.
    """
    missing = [plan for plan in plans if not study_training.kept(plan, options)]
    if min(jobs, len(missing)) < 2:
        return
    expected = study_models.expected_seconds(missing, options)
    missing.sort(key=lambda plan: -expected[plan.name])
    running = {}
    with side_by_side.Processes(min(jobs, len(missing)), progress) as processes:
        while missing or running:
            open_names = {plan.name for plan in [*missing, *running.values()]}
            ready = [p for p in missing if p.start is None or p.start.name not in open_names]
            for plan in ready:
                running[processes.submit(_train, plan, options)] = plan
            missing = [plan for plan in missing if plan not in ready]
            for future in processes.first(list(running)):
                future.result()
                log.info("%s is trained", running.pop(future).name)


def _train(plan, options):
    tell = partial(side_by_side.tell, plan.name)
    study_training.trained(plan, options, [told_to(tell)])
    tell(1, 1)
    if plan.of is None:
        _measure_alone(plan, options)


def _measure_alone(plan, options):
    """Makes the measurements of a model that share no pass with those of others."""
    from vit_tf.analysis.study.measure import in_own_passes, measure
    from vit_tf.analysis.study.plan import choose_figures, plan as plan_pictures

    models, _ = study_models.train_all([plan], options, lambda *_: None)
    data = reporting.read_data(
        options, common.describe_labelled(options), image_size=options.image_size
    )
    figures = choose_figures(reporting.figure_numbers(options))
    pictures, _ = plan_pictures(figures, models, data)
    wanted = [one for picture in pictures for one in picture.of.measurements.values()]
    words = f"measuring {plan.name}"
    measure(
        in_own_passes(wanted),
        data,
        options.out / "results",
        lambda *_: side_by_side.tell(plan.name, 1, 1, words),
    )
