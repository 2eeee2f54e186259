//! Published failures of large training runs, by part.

/// A cause of interruptions with its number in Llama 3's training: Grattafiori et al., "The Llama 3 herd of models", 2024, table 5:
/// 54 days on 16,384 H100. Kokolis et al., "Revisiting reliability in large-scale machine learning research clusters", 2024, count 2.3 to
/// 6.5 failures for each 1000 node days on A100; Llama 3's rate is 3.8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureCause {
    /// What failed.
    pub part: &'static str,
    /// Unexpected interruptions.
    pub interruptions: u32,
}

/// GPU hours of Llama 3's 54 days.
pub const LLAMA3_GPU_HOURS: f64 = 16_384.0 * 54.0 * 24.0;

/// The unexpected interruptions of Llama 3's training; 47 more were planned.
pub const CAUSES: [FailureCause; 9] = [
    FailureCause { part: "GPU", interruptions: 148 + 19 + 17 + 6 + 6 },
    FailureCause { part: "memory of the GPU", interruptions: 72 },
    FailureCause { part: "software", interruptions: 54 + 2 },
    FailureCause { part: "network: switch or cable", interruptions: 35 },
    FailureCause { part: "host maintenance", interruptions: 32 },
    FailureCause { part: "NIC", interruptions: 7 },
    FailureCause { part: "NCCL, unknown", interruptions: 7 },
    FailureCause { part: "storage of the host", interruptions: 3 },
    FailureCause { part: "CPU, power, memory, board", interruptions: 3 + 2 + 2 + 2 + 2 },
];

/// GPU hours between unexpected failures in Llama 3's training.
pub fn mean_gpu_hours() -> f64 {
    LLAMA3_GPU_HOURS / CAUSES.iter().map(|cause| f64::from(cause.interruptions)).sum::<f64>()
}
