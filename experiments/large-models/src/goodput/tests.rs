use super::*;

const DAY: f64 = 86400.0;
/// Bytes of a checkpoint of Llama 3 405B: 2 of a parameter, 12 of the optimiser's state.
const STATE: f64 = 14.0 * 405.9e9;

#[test]
fn llama_3_trained_more_than_nine_tenths_of_54_days() {
    assert_eq!(CAUSES.iter().map(|cause| cause.interruptions).sum::<u32>(), 419);
    let run = FaultyRun { planned_per_day: 47.0 / 54.0, ..FaultyRun::usual(16_384, 8, 54.0 * DAY, STATE) };
    let found = goodput(&run, 1);
    assert!((found.interruptions - 466.0).abs() < 40.0, "{found:?}");
    assert!(found.high >= 0.9 && found.share > 0.89 && found.share < 0.94, "{found:?}");
}

#[test]
fn simulated_runs_agree_with_the_closed_formula() {
    for (gpus, restart, checkpoint) in [(1024, 300.0, 30.0), (16_384, 600.0, 60.0), (65_536, 900.0, 10.0)] {
        let run =
            FaultyRun { restart, checkpoint, repair: 0.0, ..FaultyRun::usual(gpus, 8, 60.0 * DAY, STATE) };
        for interval in [run.young() / 2.0, run.young(), 2.0 * run.young()] {
            let found = goodput(&FaultyRun { interval: Some(interval), ..run }, 7);
            let right = run.closed_form(interval);
            assert!((found.share - right).abs() < 0.01, "{gpus} {interval}: {} and {right}", found.share);
            assert!(found.low < right && right < found.high + 0.002);
        }
    }
}

#[test]
fn the_best_interval_is_near_those_of_young_and_daly() {
    let run = FaultyRun::usual(16_384, 8, 54.0 * DAY, STATE);
    let (best, young, daly) = (run.best_interval(), run.young(), run.daly());
    assert!((best / daly - 1.0).abs() < 0.1 && (best / young - 1.0).abs() < 0.15, "{best} {young} {daly}");
    for other in [best * 0.7, best * 1.4] {
        assert!(run.closed_form(other) < run.closed_form(best));
    }
    // Young: sqrt(2 x checkpoint x mean).
    assert!((young - (2.0 * STATE / 2e12 * 54.0 * DAY / 419.0).sqrt()).abs() < 1e-6 * young);
}

#[test]
fn more_failures_longer_restarts_and_fewer_spares_cost_time() {
    let base = FaultyRun::usual(16_384, 8, 30.0 * DAY, STATE);
    let share = |run: FaultyRun| goodput(&run, 3).share;
    let usual = share(base);
    assert!(share(FaultyRun { gpu_hours: base.gpu_hours / 4.0, ..base }) < usual);
    assert!(share(FaultyRun { restart: 3600.0, ..base }) < usual);
    assert!(share(FaultyRun { spares: 0, ..base }) < 0.5 * usual);
    assert!((share(FaultyRun { stragglers: 0.1, ..base }) - usual / 1.1).abs() < 1e-9);
    assert_eq!(goodput(&base, 3), goodput(&base, 3), "the same seed");
    assert!(share(FaultyRun { gpu_hours: 1e15, ..base }) > 0.99);
    // A run that never gets through a segment ends, too.
    assert!(share(FaultyRun { gpu_hours: 1.0, interval: Some(1e6), seconds: 3600.0, ..base }) < 0.01);
}
