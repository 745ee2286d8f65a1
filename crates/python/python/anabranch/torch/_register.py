"""Registration of the backend. ``import torch`` imports this module, so the module itself imports nothing of torch."""

NAME = "anabranch"


def register() -> None:
    """Registers the backend ``anabranch`` with ``torch.distributed``. Doing it again does nothing.

    torch calls it through the entry points ``torch.backends`` (at ``import torch``) and ``torch.distributed.backends`` (torch 2.14 and newer,
    at ``init_process_group``). Call it yourself where entry points are not installed or ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` is set.
    """
    import torch.distributed

    if not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    if not hasattr(backend, NAME.upper()):
        backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options, pg_options):
    from ._backend import create

    return create(options, pg_options)
