"""GPUs: their number, driver, memory, temperature and links.

All are warnings at most: their rules were tested on recordings, not on real GPUs.
"""

from dataclasses import replace

from aboard.diagnoses.diagnosis import run_warning, warning
from aboard.diagnoses.failure_class import FailureClass, RunFix, classify_fixes
from aboard.diagnoses.fixes import Advice, FixTemplates
from aboard.diagnoses.nodes.unanswered_probes import declare_unanswered
from aboard.diagnoses.output_patterns import KERNEL_XID, cause, odd

# These probes use nvidia-smi, too, and fail for the same reason.
_NO_ANSWER = ("unknown-gpu-processes", "unknown-gpu-health")

COUNT = warning(
    code="gpu-count",
    title="a node has fewer GPUs than slots",
    symptoms=(
        "CUDA error: invalid device ordinal",
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "Multiple Ranks are using the same GPU",
        "No devices were found",
    ),
    explanation="A rank without a GPU fails with `invalid device ordinal`; two ranks on one GPU fail with `Duplicate"
    " GPU detected`. Possible causes: a GPU fell off the bus, a container or Slurm hides it, `slots:` was copied from"
    " a different node, or the script doesn't call `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`.",
    fixes={
        "look": "nvidia-smi -L; lspci | grep -i nvidia    # on {node}; a GPU that only lspci lists needs a reboot",
        "slots": Advice("slots: {count}    # for {node} in aboard.yaml, if it has only that many GPUs"),
    },
    log_fix="echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L    # on {node}, where ranks start",
    patterns=cause(
        r"Cuda failure (?:\d+ )?'invalid device ordinal'|CUDA error: invalid device ordinal|invalid device ordinal",
        "A rank was assigned a GPU index that doesn't exist: the node has more ranks than visible GPUs.",
    ),
)

HIDDEN = warning(
    code="gpu-hidden",
    title="CUDA_VISIBLE_DEVICES hides GPUs that ranks need",
    symptoms=(
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "Multiple Ranks are using the same GPU",
        "CUDA error: invalid device ordinal",
        "RuntimeError: No CUDA GPUs are available",
    ),
    explanation="If CUDA_VISIBLE_DEVICES lists too few GPUs, ranks share a GPU (`Duplicate GPU detected`) or fail with"
    " `invalid device ordinal`. The usual causes are a leftover line in ~/.bashrc and an aboard.yaml entry copied from"
    " a smaller machine. CUDA reads the list only up to the first entry that it doesn't know.",
    fixes={
        "ours": Advice("CUDA_VISIBLE_DEVICES: {gpus}    # in `env:` of {node} in aboard.yaml, where it is set"),
        "look": "grep -n CUDA_VISIBLE_DEVICES ~/.bashrc ~/.profile /etc/environment    # on {node}; remove it where"
        " it is"
        " set",
        "set": Advice(
            "CUDA_VISIBLE_DEVICES: {gpus}    # or in `env:` of {node} in aboard.yaml, which takes precedence"
        ),
        "slots": Advice("slots: {left}    # for {node}, if you are not allowed to use the other GPUs"),
    },
    log_fix="echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L    # on {node}, where ranks start",
    patterns=cause(
        r"No CUDA GPUs are available|Found no NVIDIA driver on your system|CUDA unknown error - this may be due"
        r"|no CUDA-capable device is detected|Unable to proceed, no GPU resources available",
        "The process can't see a GPU. CUDA_VISIBLE_DEVICES may hide it, the Slurm job may not have requested one, or"
        " the driver may be missing.",
    ),
)

MODEL = warning(
    code="gpu-model",
    title="GPU models differ",
    symptoms=("CUDA out of memory on one node only", "one rank is always the slowest"),
    explanation="All ranks wait for the slowest GPU, and the GPU with the least memory limits the batch size.",
    fixes={
        "odd": "nvidia-smi -L    # on {where:shell}; exclude these nodes with `exclude:` in aboard.yaml, or"
        " train only on them",
        "several": "nvidia-smi -L    # on {node}; use `include:` in aboard.yaml to select nodes with the same model",
    },
)

DRIVER = warning(
    code="gpu-driver",
    title="nodes have different NVIDIA drivers",
    symptoms=(
        "CUDA driver version is insufficient for CUDA runtime version",
        "The NVIDIA driver on your system is too old",
        "Cuda failure 'the provided PTX was compiled with an unsupported toolchain.'",
    ),
    explanation="CUDA and NCCL choose features by driver version. Nodes that choose different features hang or fail in"
    " their first collective.",
    fixes={
        "odd": "cat /proc/driver/nvidia/version    # on {where:shell}; install the other nodes' version there"
        " (nvidia-driver-VERSION, and the same fabric manager), and reboot"
    },
)

CUDA = run_warning(
    code="gpu-cuda",
    restart=FailureClass.UNKNOWN,
    title="torch can't use a node's GPUs",
    symptoms=(
        "AssertionError: Torch not compiled with CUDA enabled",
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)",
        "torch.cuda.is_available() is False",
    ),
    explanation="torch was built without CUDA, or for a newer CUDA version than the driver supports, or CUDA doesn't"
    " start. Then many programs silently compute on the CPU, which is many times slower, and ranks on other nodes"
    " wait for them. `aboard train` starts no rank on such a node.",
    remedy="`pip install torch` installs the newest CUDA build; a mirror, a lock file or `--index-url .../cpu` may have"
    " selected a different one. A driver supports all CUDA versions of its own major version and older ones.",
    fixes={
        "torch": "{command:shell}    # the newest CUDA for this driver and these GPUs",
        "driver": Advice(
            "install NVIDIA driver {least} or newer on {node}, which CUDA {cuda} needs, and reboot the node"
        ),
        "look": "nvidia-smi; python -c 'import torch; torch.cuda.init()'    # on {node}, with the `setup:`, `env:`"
        " and container of its ranks",
        "cpu": Advice("`train: {{device: cpu}}` trains on CPUs, if that is what you want"),
    },
    log_fix="python -c 'import torch; print(torch.version.cuda); torch.cuda.init()'    # on {node}, where ranks start",
    patterns=cause(
        r"Torch not compiled with CUDA enabled",
        "torch was installed as a CPU build, which can't use GPUs.",
    ),
)

DRIVER_MISMATCH = run_warning(
    code="gpu-driver-mismatch",
    restart=FailureClass.NODE,
    title="the driver's libraries and kernel module have different versions",
    symptoms=(
        "Failed to initialize NVML: Driver/library version mismatch",
        "NVRM: API mismatch: the client has the version 550.90.07, but this kernel module has the version",
        "CUDA error 803: system has unsupported display driver / cuda driver combination",
    ),
    explanation="An upgrade, often an unattended one at night, replaced the driver's libraries on disk, but the kernel"
    " is still running the old module. CUDA can't start.",
    leads_to=_NO_ANSWER,
    fixes={
        "": "sudo reboot    # on {node}; or, if no process uses the GPUs: sudo rmmod nvidia_uvm nvidia_drm"
        " nvidia_modeset nvidia && sudo modprobe nvidia\n"
        "sudo apt-mark hold 'nvidia-*' 'libnvidia-*'    # on {node}; prevents further unattended upgrades",
        "cuda": "nvidia-smi | head -4    # on {node}; Driver Version and the CUDA version it supports\n"
        "python -c 'import torch; print(torch.version.cuda)'    # the CUDA version that torch needs",
    },
    patterns=(
        cause(
            r"CUDA driver version is insufficient for CUDA runtime version|NVIDIA driver on your system is too old",
            "torch was built for a newer CUDA version than this node's driver supports.",
            fix="cuda",
        ),
        cause(r"Driver/library version mismatch"),
    ),
)

LOST = run_warning(
    code="gpu-lost",
    restart=FailureClass.NODE,
    title="a GPU is lost",
    symptoms=(
        "Unable to determine the device handle for GPU0000:9B:00.0: Unknown Error",
        "GPU is lost. Reboot the system to recover this GPU",
        "CUDA error: unknown error",
    ),
    explanation="The GPU stopped responding on the PCI bus (Xid 79), usually because of heat, bad power, a bad riser or"
    " a defect in the GPU. The GPU can't be used until the node is rebooted, and often not even then; CUDA may fail to"
    " start at all on this node.",
    leads_to=_NO_ANSWER,
    fixes="sudo reboot    # on {node}; if it happens again, exclude {node}: it needs repair",
    log_fix="sudo dmesg -T | grep -i xid    # on {node}; then exclude the node, and have the GPU inspected",
    patterns=cause(
        KERNEL_XID + r"79\b"
        r"|fallen off the bus|Unable to determine the device handle for GPU|GPU is lost|RmInitAdapter failed",
        "A GPU has fallen off the PCI bus, usually because of bad power, heat, a bad riser or a defective board. The"
        " GPU is unusable until the next reboot.",
        late=True,
    ),
)

SMI = warning(
    code="gpu-smi",
    title="nvidia-smi fails",
    symptoms=(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "Failed to initialize NVML: Unknown Error",
        "Failed to initialize NVML: Insufficient Permissions",
        "No devices were found",
    ),
    explanation="Ranks on this node won't find a GPU either. Possible causes: the driver module is not loaded (Secure"
    " Boot blocks it, or a new kernel needs `sudo dkms autoinstall`), this user is not allowed to open /dev/nvidia*,"
    " or a container was started without its GPU option (`--nv`, `--gpus all`).",
    leads_to=_NO_ANSWER,
    fixes="nvidia-smi; sudo dmesg | grep -iE 'nvrm|nvidia'    # on {node}\n"
    "sudo modprobe nvidia    # on {node}; if that fails, reinstall the driver and reboot",
)

_XID_OF_NODE: FixTemplates = {
    "gone": "sudo reboot    # on {node}; if {device} is not back or fails again, exclude {node}: it needs repair",
    "link": "nvidia-smi nvlink -s; nvidia-smi nvlink -e    # on {node}; which link is down, or has errors?\n"
    "sudo nvidia-smi --gpu-reset    # on {node}; resets all GPUs if no process uses them; otherwise reboot",
    "reset": "sudo nvidia-smi --gpu-reset -i {device}.0    # on {node}; works only if no process uses the"
    " GPU\n"
    "sudo dcgmi diag -r 3    # on {node}; if it fails or the Xid recurs, exclude {node}",
    "earlier": "sudo dmesg -T | grep -i xid    # on {node}; nothing to do if one of your earlier runs had a bug",
    "listed": "sudo dmesg -T | grep -i xid    # on {node}; NVIDIA's list of Xid errors explains Xid {xid}",
    "before": "sudo dmesg -T | grep -i xid    # on {node}; an earlier Xid is the cause",
    "processor": "sudo reboot    # on {node}; if Xid {xid} recurs, exclude the node: it needs a newer driver or repair",
}
XID = run_warning(
    code="gpu-xid",
    restart=FailureClass.UNKNOWN,
    title="the driver reported Xid errors",
    symptoms=(
        "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, Row Remapper: New row marked for remapping",
        "NVRM: Xid (PCI:0000:ca:00): 31, pid=1587, name=python, Ch 0000000a, MMU Fault: ENGINE GRAPHICS",
        "NVRM: Xid (PCI:0000:3b:00): 48, Double Bit ECC Error",
        "NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected",
        "NVRM: Xid (PCI:0000:3b:00): 94, Contained memory error",
        "NVRM: Xid (PCI:0000:3b:00): 119, Timeout waiting for RPC from GSP!",
    ),
    explanation="An Xid is the NVIDIA driver's number for a GPU error. Xids 13, 31, 43 and 45 usually come from the"
    " program; 48, 63, 64, 92, 94 and 95 from GPU memory; 74 and 144 to 150 from NVLink; 119 and 120 from the GPU"
    " System Processor (GSP). Xid 79 means that the GPU has fallen off the bus.",
    leads_to=_NO_ANSWER,
    classified_fixes={
        "program": RunFix(
            FailureClass.PROGRAM,
            "export CUDA_LAUNCH_BLOCKING=1    # then rerun: the traceback shows the failing line\n"
            "sudo dmesg -T | grep -i xid    # on {node}; only other Xids point to the hardware",
        ),
        **classify_fixes(FailureClass.NODE, _XID_OF_NODE),
    },
    patterns=(
        # Logged for every process that an earlier failure took down.
        cause(
            KERNEL_XID + r"45\b.*caused by previous Xid (?P<xid>\d+)",
            "The driver terminated the process because of an earlier GPU error.",
            fix="listed",
            weight=2,
        ),
        cause(
            KERNEL_XID + r"(?P<xid>43|45)\b",
            "The driver terminated the process, usually because of a bug in the program or an earlier GPU error.",
            fix="before",
            weight=1,
        ),
        cause(
            KERNEL_XID + r"(?P<xid>119|120)\b",
            "The GPU System Processor (GSP) does not respond; calls to it hang until the next reboot.",
            fix="processor",
            late=True,
        ),
        cause(
            KERNEL_XID + r"(?P<xid>\d+)", "The driver reported a GPU error.", fix="listed", late=True, precedence=600
        ),
    ),
)

ECC = run_warning(
    code="gpu-ecc",
    restart=FailureClass.NODE,
    title="a GPU has uncorrectable memory errors",
    symptoms=("CUDA error: uncorrectable ECC error encountered", "NVRM: Xid (PCI:0000:3b:00): 48"),
    explanation="The GPU's memory returns wrong bits, and sooner or later a rank on this GPU dies with `uncorrectable"
    " ECC error encountered`. A faulty memory row stays in use until the GPU is reset.",
    fixes="sudo nvidia-smi --gpu-reset -i {gpu}    # on {node}; remaps the bad rows\n"
    "nvidia-smi -q -d ROW_REMAPPER,ECC    # on {node}; if errors recur, exclude {node}",
    log_fix="nvidia-smi -q -d ECC,ROW_REMAPPER    # on {node}; find the GPU, reset it, and replace it if errors recur",
    patterns=cause(
        KERNEL_XID + r"(?:48|63|64|92|94|95|140)\b"
        r"|[Uu]ncorrectable ECC error|double[- ]bit ECC|CUDA error: uncorrectable ECC",
        "A GPU has uncorrectable memory errors, so its results can't be trusted.",
        late=True,
    ),
)

STATE = warning(
    code="gpu-state",
    title="a GPU is in a state that stops or slows ranks",
    symptoms=(
        "Remapping Failure Occurred : Yes",
        "GPU Recovery Action : Reset",
        "Compute Mode : Prohibited",
        "MIG Mode Current : Enabled",
    ),
    explanation="`nvidia-smi -q` reports a setting or a condition with which ranks on this GPU fail, compute with"
    " unreliable memory, or make all others wait.",
    fixes={
        "remap-pending": "sudo nvidia-smi --gpu-reset -i {gpu}    # on {node}; if no process uses the GPU",
        "remap-failed": "nvidia-smi -q -d ROW_REMAPPER    # on {node}; exclude {node}: the GPU must be replaced",
        "recovery": "nvidia-smi -q | grep 'Recovery Action'    # on {node}; do what it says, or exclude {node}",
        "prohibited": "sudo nvidia-smi -i {gpu} -c DEFAULT    # on {node}",
        "mig": "sudo nvidia-smi -i {gpu} -mig 0    # on {node}; then reset the GPU or reboot",
        "width": "nvidia-smi -q | grep -A 2 'Link Width'    # on {node}; reseat the GPU or its riser",
        "fabric": "nvidia-smi -q | grep -A 12 Fabric    # on {node}; reset all its GPUs, or exclude {node}",
        "ecc-off": "sudo nvidia-smi -i {gpu} -e 1    # on {node}; takes effect after a reboot",
    },
)

THROTTLED = warning(
    code="gpu-throttled",
    title="a GPU is throttled by heat or power",
    symptoms=("HW Thermal Slowdown : Active", "HW Power Brake Slowdown : Active", "one rank is slower than all others"),
    explanation="The hardware lowers a GPU's clock when the GPU is too hot or its power supply requests it. The rank"
    " on this GPU becomes the slowest, and every step takes as long as the slowest rank.",
    fixes="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER    # on {node}; check the fans, inlet air and power cables\n"
    "sudo ipmitool sdr type Fan; sudo ipmitool sel list | tail    # on {node}; the machine's own sensors and event log",
    patterns=odd(
        r"(?:HW|SW) (?:Thermal|Power Brake) Slowdown\s*: Active"
        r"|clocks? (?:event|throttle) reason.*(?:thermal|brake)",
        "A GPU is throttled by heat or power, and all other ranks wait for it.",
    ),
)

FABRIC_MANAGER = run_warning(
    code="gpu-fabric-manager",
    restart=FailureClass.NODE,
    title="the NVSwitch fabric is not up",
    symptoms=(
        "Error 802: system not yet initialized",
        "CUDA initialization: Unexpected error from cudaGetDeviceCount()",
        "Failed to bind NVLink SHARP (NVLS)",
        "Fabric State : In Progress",
    ),
    explanation="CUDA fails with `Error 802: system not yet initialized` until the fabric manager has connected the"
    " GPUs and NVSwitches. The fabric manager is not running, or its version doesn't match the driver's exactly. If"
    " only NVLink SHARP (NVLS) fails, `NCCL_NVLS_ENABLE: '0'` in `env:` lets you train without it, somewhat more"
    " slowly.",
    fixes="sudo systemctl enable --now nvidia-fabricmanager    # on {node}\n"
    "sudo journalctl -u nvidia-fabricmanager | tail    # on {node}; its version must be exactly the driver's",
    log_fix="systemctl status nvidia-fabricmanager    # on {node}; its version must be the driver's\n"
    "sudo systemctl restart nvidia-fabricmanager    # on {node}",
    patterns=cause(
        r"Error 802: system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|system not yet initialized",
        "This node's GPUs are connected by NVSwitch, but its fabric manager is not running.",
    ),
)

NVLINK = run_warning(
    code="gpu-nvlink",
    restart=FailureClass.NODE,
    title="NVLinks are down",
    symptoms=(
        "Link 3: <inactive>",
        "NVML: Unable to retrieve NVLink information as all links are inActive",
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
    ),
    explanation="Links between GPUs, or from a GPU to a switch, did not come up or were disabled after errors. Traffic"
    " between these GPUs takes a slower path, and all ranks wait for it.",
    fixes="nvidia-smi nvlink -s; nvidia-smi nvlink -e    # on {node}; shows the links and their errors\n"
    "sudo nvidia-smi --gpu-reset    # on {node}; if they stay down, exclude {node}: it needs repair",
    log_fix="nvidia-smi nvlink -s; nvidia-smi nvlink -e    # on {node}; which link has errors?",
    patterns=cause(
        KERNEL_XID + r"(?:74|14[4-9]|150|155)\b|NVLink.*(?:fatal|recovery failed)"
        # A switch also logs "Non-fatal".
        r"|SXid \([^)]*\): \d+, Fatal\b",
        "A link between GPUs (NVLink) failed.",
        late=True,
    ),
)

UNKNOWN_GPUS = replace(
    declare_unanswered("gpus"),
    fixes="command -v nvidia-smi    # on {node}; install nvidia-utils, or add its directory to the PATH for ssh logins",
)

UNKNOWN_KERNEL_LOG = replace(
    declare_unanswered("kernel-log"),
    fixes="sudo usermod -aG systemd-journal $USER    # on {where:shell}; or once: sudo dmesg | grep -i xid",
)

UNKNOWN_FABRIC_MANAGER = replace(
    declare_unanswered("fabric-manager"),
    fixes="nvidia-smi -q | grep -A 2 Fabric    # on {node}; must show Completed and Success",
)
