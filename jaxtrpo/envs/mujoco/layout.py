"""Layout of a simulation in the arrays that JAX carries."""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import numpy as np

from jaxtrpo.envs.mujoco.libmujoco import NoLogging

# Functions of MuJoCo that compute fields which a step leaves as they are, and those fields.
FORCES, SUBTREES = "mj_rnePostConstraint", "mj_subtreeVel"
LATER = {
    **dict.fromkeys(("cacc", "cfrc_int", "cfrc_ext"), FORCES),
    **dict.fromkeys(("subtree_linvel", "subtree_angmom"), SUBTREES),
}
# Fields that are computed where the model says so, and how it does.
FLAGS = {"energy": "energy", "qfrc_inverse": "fwdinv"}


class Layout(NamedTuple):
    """Layout of a simulation in the arrays that JAX carries.

    A state row is float64 and holds the parts of MuJoCo's integration state that a step changes, then the previous
    values of the fields in `Task.changes`. The other inputs (applied forces, mocap, ...) are constant and not carried.
    A field row is float32 and holds the fields, then the changes.
    """

    fields: tuple[str, ...]
    changes: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]  # shape of each field for one simulation
    carried: tuple[slice, ...]  # carried parts of MuJoCo's state row
    control: slice  # controls in MuJoCo's state row
    state_size: int  # number of float64 values in a state row
    field_size: int  # number of float32 values in a field row
    zero_at_first: tuple[str, ...]  # fields that are zero in the first state of an episode

    def slices(self) -> list[tuple[str, bool, slice]]:
        """Returns (field, whether it is a change, columns of a field row) for each part of a field row."""
        slices, start = [], 0
        for name, is_change in [(f, False) for f in self.fields] + [(c, True) for c in self.changes]:
            size = int(np.prod(self.shapes[name], dtype=int))
            slices.append((name, is_change, slice(start, start + size)))
            start += size
        return slices


def make_layout(model: mujoco.MjModel, fields: tuple[str, ...], changes: tuple[str, ...]) -> Layout:
    """Creates the layout for `fields` and `changes` of a model.

    Raises:
      ValueError: a name is given twice or is not an MjData field of float64 numbers, MuJoCo does not compute it for
        this model, or a change is not among the fields.
    """
    for name in fields:
        if fields.count(name) > 1:
            raise ValueError(f"Task.fields: {name!r} is given twice")
    data = mujoco.MjData(model)
    shapes = {}
    for name in fields:
        value = getattr(data, name, None)
        if isinstance(value, float):  # time
            value = np.asarray(value)
        if not isinstance(value, np.ndarray) or value.dtype != np.float64:
            raise ValueError(f"Task.fields: {name!r} is not an MjData field of float64 numbers")
        flag = FLAGS.get(name)
        if flag is not None and not model.opt.enableflags & int(getattr(mujoco.mjtEnableBit, f"mjENBL_{flag.upper()}")):
            raise ValueError(f'Task.fields: MuJoCo computes {name!r} only with <flag {flag}="enable"/> in the MJCF')
        shapes[name] = value.shape
    missing = [name for name in changes if name not in fields]
    if missing:
        raise ValueError(f"Task.changes: {missing[0]!r} must also be in Task.fields")
    inputs = int(mujoco.mjtState.mjSTATE_USER)
    carried, control, start = [], slice(0, 0), 0
    for bit in range(int(mujoco.mjtState.mjNSTATE)):
        size = mujoco.mj_stateSize(model, 1 << bit)
        if 1 << bit == int(mujoco.mjtState.mjSTATE_CTRL):
            control = slice(start, start + size)
        elif size and not inputs & (1 << bit):
            if carried and carried[-1].stop == start:
                carried[-1] = slice(carried[-1].start, start + size)
            else:
                carried.append(slice(start, start + size))
        start += size
    sizes = {name: int(np.prod(shape, dtype=int)) for name, shape in shapes.items()}
    change_size = sum(sizes[name] for name in changes)
    forces = [name for name in fields if LATER.get(name) == FORCES]
    return Layout(
        fields=fields,
        changes=changes,
        shapes=shapes,
        carried=tuple(carried),
        control=control,
        state_size=sum(part.stop - part.start for part in carried) + change_size,
        field_size=sum(sizes.values()) + change_size,
        zero_at_first=tuple(forces) if forces and not _computes_forces(model) else (),
    )


def _computes_forces(model: mujoco.MjModel) -> bool:
    """Returns whether mj_forward computes the fields of `FORCES`, because sensors of the model need them.

    Otherwise they are zero after it, as in Gymnasium.
    """
    data = mujoco.MjData(model)
    data.cacc[:] = np.nan
    with NoLogging():
        mujoco.mj_forward(model, data)
    return not np.isnan(data.cacc).any()
