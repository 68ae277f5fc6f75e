"""The paper's tables, as printed: the only figures in this library that were typed, not measured.

Numbers and labels are those of the paper's own tables (its Table 1 lists hyper-parameters, so results begin with 2).
tests/report/test_paper.py compares every cell with the paper's source where that is at hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass

ASTERISK = "*\u00a0quoted by the paper from the original publication."
DAGGER = "†\u00a0ensemble of 7 models."


@dataclass(frozen=True)
class Figure:
    """One accuracy of MSPCaps, in percent: the best epoch on the test set; of how many runs the paper does not say."""

    model: str  # its name in this library
    dataset: str
    accuracy: float
    params: str  # the paper truncates: 344,320 is 344.3K
    setting: tuple[str, ...]  # what the row says about the model


@dataclass(frozen=True)
class Baseline:
    """A row that the paper sets beside MSPCaps, never trained here. Cells are as printed, "-" where there is none."""

    network: str
    params: str
    accuracy: Mapping[str, str]  # by data set


@dataclass(frozen=True)
class PaperTable:
    """One table of results."""

    number: int
    label: str  # in the paper's source
    title: str
    heads: tuple[str, ...]  # of Figure.setting
    figures: tuple[Figure, ...]
    datasets: tuple[str, ...] = ("cifar10",)
    baselines: tuple[Baseline, ...] = ()
    claim: str = ""  # what the paper concludes from it
    note: str = ""  # what had to be guessed
    clash: str = ""  # what others publish about the baselines that the paper does not

    @property
    def anchor(self) -> str:
        return f"table-{self.number}"


def _t(dataset: str, accuracy: float, *setting: str) -> Figure:
    return Figure("mspcaps_t", dataset, accuracy, "344.3K", setting)


def _l(dataset: str, accuracy: float, *setting: str) -> Figure:
    return Figure("mspcaps_l", dataset, accuracy, "10.9M", setting)


def _baseline(network: str, params: str, datasets: tuple[str, ...], *cells: str) -> Baseline:
    return Baseline(network, params, dict(zip(datasets, cells, strict=True)))


T, L = "MSPCaps-T", "MSPCaps-L"
_SMALL = ("mnist", "svhn", "cifar10")
_LARGE = ("mnist", "fashionmnist", "cifar10")

SMALL = PaperTable(
    number=2,
    label="tab:MSPCaps-T Performance",
    title="MSPCaps-T against the baselines",
    heads=(),
    figures=(_t("mnist", 99.69), _t("svhn", 95.79), _t("cifar10", 88.71)),
    datasets=_SMALL,
    baselines=(
        _baseline("CapsNet", "6.8M", _SMALL, "99.45", "93.96", "74.88"),
        _baseline("DA-CapsNet", "7M*", _SMALL, "99.53*", "94.82*", "85.47*"),
        _baseline("AA-CapsNet", "6.6M*", _SMALL, "99.34*", "92.13*", "71.60*"),
        _baseline("IDP-CapsNet", "560K", _SMALL, "99.35", "-", "85.17"),
        _baseline("Efficient-Caps", "162.4K", _SMALL, "99.65", "95.20", "77.81"),
        _baseline("OrthCaps-S", "105.5K*", _SMALL, "99.68*", "96.26*", "86.84*"),
    ),
    clash="Published elsewhere for CIFAR-10: the authors of IDP-CapsNet report 94.73 to 94.85 on average and 95.14 at "
    "best, with a ResNet backbone.",
)
LARGE = PaperTable(
    number=3,
    label="tab:MSPCaps-L Performance",
    title="MSPCaps-L against the baselines",
    heads=(),
    figures=(_l("mnist", 99.73), _l("fashionmnist", 95.05), _l("cifar10", 92.88)),
    datasets=_LARGE,
    baselines=(
        _baseline("CapsNet†", "6.8M*", _LARGE, "-", "-", "89.40*"),
        _baseline("RS-CapsNet", "5.0M*", _LARGE, "-", "93.51*", "89.81*"),
        _baseline("AR-CapsNet", "9.6M*", _LARGE, "99.46*", "-", "88.61*"),
        _baseline("AR-CapsNet†", "9.6M*", _LARGE, "99.49*", "-", "90.11*"),
        _baseline("DeepCaps", "13.5M*", _LARGE, "99.72*", "94.46*", "91.01*"),
        _baseline("OrthCaps-D", "574K*", _LARGE, "99.58*", "94.60*", "90.56*"),
    ),
    clash="Published elsewhere for CIFAR-10: the authors of DeepCaps report 92.74 for weights that come with an "
    "ensemble, users of their code 90.6 to 91 for a single model; re-runs of a single CapsNet give 54 to 75.",
)
SCALES = PaperTable(
    number=4,
    label="tab:Scale_Ablation",
    title="Which scales matter",
    heads=("32 × 32", "16 × 16", "8 × 8"),
    figures=(
        Figure("mspcaps_t_scale32", "cifar10", 74.81, "92.9K", ("yes", "no", "no")),
        Figure("mspcaps_t_scale16", "cifar10", 81.90, "86.9K", ("no", "yes", "no")),
        Figure("mspcaps_t_scale8", "cifar10", 87.48, "293.6K", ("no", "no", "yes")),
        Figure("mspcaps_t_scale32_16", "cifar10", 81.57, "87.6K", ("yes", "yes", "no")),
        _t("cifar10", 88.71, "yes", "yes", "yes"),
    ),
    claim="the 8 × 8 map matters most, and all three scales together are best.",
    note="With fewer scales there is one routing block instead of two, with the capsule sizes of the first: 8 numbers, "
    "and 16 instead of 32 for a class. These rows therefore differ in that as well as in the scales.",
)
ROUTING = PaperTable(
    number=5,
    label="tab:Routing_Ablation",
    title="Dynamic routing against cross-agreement routing",
    heads=("variant", "routing"),
    figures=(
        Figure("mspcaps_t_dr", "cifar10", 87.46, "483.5K", (T, "4 × DR")),
        _t("cifar10", 88.71, T, "2 × CAR"),
        Figure("mspcaps_l_dr", "cifar10", 92.56, "14.6M", (L, "4 × DR")),
        _l("cifar10", 92.88, L, "2 × CAR"),
    ),
    claim="cross-agreement routing (CAR) beats dynamic routing (DR) with fewer parameters.",
    note="The paper does not state the capsule sizes of its DR networks. Our reading (8 numbers per capsule for T and "
    "48 for L, twice as many for a class) gives its parameter counts and is what its authors used before; other "
    "readings give the same counts. These rows therefore differ in capsule size as well as in the routing.",
)
SHARING = PaperTable(
    number=6,
    label="tab:Shared_Ablation",
    title="Shared against own vote weights",
    heads=("variant", "shared weights"),
    figures=(
        _t("cifar10", 88.71, T, "yes"),
        Figure("mspcaps_t_unshared", "cifar10", 87.59, "557.3K", (T, "no")),
        Figure("mspcaps_l_shared", "cifar10", 92.50, "7.9M", (L, "yes")),
        _l("cifar10", 92.88, L, "no"),
    ),
    claim="sharing the vote weights helps T and hurts L.",
    note="Capsules that share weights must have the same size, so L cannot keep its own sizes. We use 16, 16 and "
    "32 numbers at the three scales, 32 for middle capsules and 64 for a class, one of several readings that give the "
    "paper's 7.9M parameters. L's rows therefore differ in capsule size as well as in the sharing.",
)
PATCHES = PaperTable(
    number=7,
    label="tab:PatchSize",
    title="The size of a patch",
    heads=("variant", "patch size", "capsules"),
    figures=(
        Figure("mspcaps_t_p2", "cifar10", 88.01, "899.3K", (T, "2", "336")),
        Figure("mspcaps_t_p3", "cifar10", 86.34, "388.7K", (T, "3", "129")),
        _t("cifar10", 88.71, T, "4", "84"),
        Figure("mspcaps_l_p2", "cifar10", 93.16, "39.4M", (L, "2", "336")),
        Figure("mspcaps_l_p3", "cifar10", 93.30, "13.7M", (L, "3", "129")),
        _l("cifar10", 92.88, L, "4", "84"),
    ),
    claim="patch size 4 is best for T, 3 for L.",
)

MAIN: tuple[PaperTable, ...] = (SMALL, LARGE)
ABLATIONS: tuple[PaperTable, ...] = (SCALES, ROUTING, SHARING, PATCHES)
TABLES: tuple[PaperTable, ...] = MAIN + ABLATIONS
TITLES: Mapping[str, str] = {"mspcaps_t": T, "mspcaps_l": L}


def figure_of(model: str, dataset: str) -> Figure | None:
    """The paper's figure for a model on a data set, if it has one; the same wherever it is printed."""
    return next((f for table in TABLES for f in table.figures if (f.model, f.dataset) == (model, dataset)), None)
