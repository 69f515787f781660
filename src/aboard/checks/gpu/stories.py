"""The long version of each GPU code: how it shows, why it happens, how to mend it."""

from aboard.diagnoses import Diagnosis, Severity


def _story(
    code: str, title: str, shows: tuple[str, ...], why: str, mend: str, leads_to: tuple[str, ...] = ()
) -> Diagnosis:
    """All warn at most: these rules were proven on recordings, not on GPUs."""
    return Diagnosis(
        code=code, title=title, severity=Severity.WARN, symptoms=shows, explanation=why, remedy=mend, leads_to=leads_to
    )


# Who asks nvidia-smi gets no better answer.
_NO_ANSWER = ("unknown-gpu-processes",)

STORIES = (
    _story(
        "gpu-count",
        "a node has fewer GPUs than slots",
        (
            "CUDA error: invalid device ordinal",
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "Multiple Ranks are using the same GPU",
            "No devices were found",
        ),
        "The number of slots says how many ranks start on a node, each with a GPU of its own. A GPU that fell off the"
        " bus, one that a container or Slurm hides, or a number that was copied from another node leaves a rank"
        " without one, or two ranks with the same.",
        "Compare `nvidia-smi -L` with `lspci | grep -i nvidia`: a GPU that only lspci lists needs a reboot, one that"
        " neither lists a technician. Else correct `slots:` in aboard.yaml. A script of your own must call"
        " `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`.",
    ),
    _story(
        "gpu-hidden",
        "CUDA_VISIBLE_DEVICES hides GPUs that ranks need",
        (
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "Multiple Ranks are using the same GPU",
            "CUDA error: invalid device ordinal",
            "RuntimeError: No CUDA GPUs are available",
        ),
        "The variable lists the GPUs that a program may see. A line in ~/.bashrc or /etc/environment that was meant for"
        " one experiment, or an entry of aboard.yaml that was copied from a smaller machine, leaves fewer than there"
        " are ranks. CUDA reads the list up to the first entry that it doesn't know.",
        "`ssh NODE 'echo $CUDA_VISIBLE_DEVICES'` shows what a rank would get. Take it out of the start-up file, or set"
        " it in `env:` of the node in aboard.yaml, which wins. To use a part of the GPUs on purpose, set `slots:` too.",
    ),
    _story(
        "gpu-model",
        "GPUs of different models",
        ("CUDA out of memory on one node only", "one rank is always the slowest"),
        "All ranks do the same work in each step, so the slowest GPU sets the pace and the smallest memory the size of"
        " the batch.",
        "Leave the odd nodes out with `exclude:` in aboard.yaml, or choose GPUs of one model with `include:`. A run on"
        " unequal GPUs works, at the pace of the weakest.",
    ),
    _story(
        "gpu-driver",
        "nodes have different NVIDIA drivers",
        (
            "CUDA driver version is insufficient for CUDA runtime version",
            "The NVIDIA driver on your system is too old",
            "Cuda failure 'the provided PTX was compiled with an unsupported toolchain.'",
        ),
        "CUDA and NCCL choose features by the driver that they find; nodes that choose differently fail or hang at"
        " their first collective.",
        "Install the version of the majority on the odd node (`sudo apt-get install nvidia-driver-VERSION`, with the"
        " fabric manager of the same version where there is one), and reboot it. Hold the packages afterwards.",
    ),
    _story(
        "gpu-driver-mismatch",
        "the driver's libraries and its kernel module are of two versions",
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            "NVRM: API mismatch: the client has the version 550.90.07, but this kernel module has the version",
            "CUDA error 803: system has unsupported display driver / cuda driver combination",
        ),
        "An upgrade, often an unattended one at night, replaced the libraries on disk; the module of the old version"
        " stays in the kernel until it is loaded anew.",
        "`sudo reboot` is the sure way. Without one: stop all that uses the GPUs (also nvidia-persistenced and dcgm),"
        " `sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia`, `sudo modprobe nvidia`. So that it doesn't come"
        " again: `sudo apt-mark hold 'nvidia-*' 'libnvidia-*'`.",
        leads_to=_NO_ANSWER,
    ),
    _story(
        "gpu-lost",
        "a GPU is lost",
        (
            "Unable to determine the device handle for GPU0000:9B:00.0: Unknown Error",
            "GPU is lost. Reboot the system to recover this GPU",
            "CUDA error: unknown error",
        ),
        "The GPU stopped answering on the PCI bus: heat, power, a riser or a defect of its own. The kernel's log has an"
        " Xid 79 with it.",
        "Reboot the node, better cold. If it comes again, leave the node out and have it repaired; the others train on"
        " without it.",
        leads_to=_NO_ANSWER,
    ),
    _story(
        "gpu-smi",
        "nvidia-smi fails",
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "Failed to initialize NVML: Unknown Error",
            "Failed to initialize NVML: Insufficient Permissions",
            "No devices were found",
        ),
        "The driver's module isn't loaded (a new kernel without a module built for it, Secure Boot), or this user may"
        " not open /dev/nvidia*.",
        "`sudo modprobe nvidia`; if there is none for this kernel, `sudo dkms autoinstall` or install the driver anew."
        " `ls -l /dev/nvidia*` must let the user read and write. In a container, start it with its GPU option"
        " (`--nv`, `--gpus all`).",
        leads_to=_NO_ANSWER,
    ),
    _story(
        "gpu-xid",
        "the driver reported Xid errors",
        (
            "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, Row Remapper: New row marked for remapping",
            "NVRM: Xid (PCI:0000:ca:00): 31, pid=1587, name=python, Ch 0000000a, MMU Fault: ENGINE GRAPHICS",
            "NVRM: Xid (PCI:0000:3b:00): 48, Double Bit ECC Error",
            "NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected",
            "NVRM: Xid (PCI:0000:3b:00): 94, Contained memory error",
            "NVRM: Xid (PCI:0000:3b:00): 119, Timeout waiting for RPC from GSP!",
        ),
        "An Xid is the driver's number for what went wrong with a GPU. 13, 31, 43 and 45 mostly come from programs; 48,"
        " 63, 64, 92, 94 and 95 from its memory, 74 and 144 to 150 from NVLink, 119 and 120 from its own processor, and"
        " 79 says that the GPU is gone.",
        "After 79, 119 or 120 reboot. After 48, 63, 64, 94 or 95 reset the GPU with `sudo nvidia-smi --gpu-reset -i"
        " N`, which puts spare memory in place of the bad. After 74 look at `nvidia-smi nvlink -e`. `sudo dcgmi diag"
        " -r 3` tests it; one that fails, or that reports again, leaves the run.",
        leads_to=_NO_ANSWER,
    ),
    _story(
        "gpu-ecc",
        "a GPU's memory has errors that can't be corrected",
        ("CUDA error: uncorrectable ECC error encountered", "NVRM: Xid (PCI:0000:3b:00): 48"),
        "Its memory returned wrong bits, was caught, and the program was ended. The row is taken out of use only when"
        " the GPU is reset.",
        "`sudo nvidia-smi --gpu-reset -i N` with no program on it, then `nvidia-smi -q -d ROW_REMAPPER`: `Remapping"
        " Failure Occurred : Yes` means that it must be replaced.",
    ),
    _story(
        "gpu-throttled",
        "a GPU is slowed down by heat or power",
        ("HW Thermal Slowdown : Active", "HW Power Brake Slowdown : Active", "one rank is slower than all others"),
        "Hardware lowers the clock when the GPU is too hot or its power supply calls for it. A power cap set by"
        " software is normal and isn't reported here.",
        "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`. Look at fans, filters and inlet air; a power brake comes"
        " from the power supplies (`sudo ipmitool sel list`). Leave the node out until it is mended: one slow GPU"
        " slows all.",
    ),
    _story(
        "gpu-fabric-manager",
        "the NVSwitch fabric is not up",
        (
            "Error 802: system not yet initialized",
            "CUDA initialization: Unexpected error from cudaGetDeviceCount()",
            "Failed to bind NVLink SHARP (NVLS)",
            "Fabric State : In Progress",
        ),
        "On machines with NVSwitches a service joins GPUs and switches at boot, and CUDA refuses to start before. It"
        " isn't running, or refuses because its version isn't the driver's to the last digit, mostly after an upgrade"
        " of one of the two.",
        "`sudo systemctl enable --now nvidia-fabricmanager`, and read `journalctl -u nvidia-fabricmanager`. On a"
        " version mismatch install `nvidia-fabricmanager-NNN` of the driver's version. If only NVLS fails:"
        " `NCCL_NVLS_ENABLE: '0'` in `env:` lets the run go on, somewhat slower.",
    ),
    _story(
        "gpu-nvlink",
        "NVLinks are down",
        (
            "Link 3: <inactive>",
            "NVML: Unable to retrieve NVLink information as all links are inActive",
            "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        ),
        "Links between GPUs, or to a switch, did not come up or were taken out of use after errors; traffic between"
        " them goes over PCI, or over fewer links.",
        "`nvidia-smi nvlink -s` on this and on another node, `nvidia-smi nvlink -e` for errors. Reset all GPUs of the"
        " node with `sudo nvidia-smi --gpu-reset`, or reboot; what stays down needs repair.",
    ),
)
