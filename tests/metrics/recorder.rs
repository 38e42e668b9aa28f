//! A metrics recorder that stores all values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// A metric's description: kind, unit and help text.
pub(crate) type Described = (&'static str, &'static str, String);
type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug)]
enum Value {
    Counter(Arc<AtomicU64>),
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Sizes>),
}

#[derive(Debug, Default)]
struct Sizes(Mutex<Vec<f64>>);

impl HistogramFn for Sizes {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

#[derive(Default)]
pub(crate) struct Kept {
    described: Mutex<BTreeMap<String, Described>>,
    values: Mutex<BTreeMap<(String, Labels), Value>>,
}

impl Kept {
    /// Sets this recorder for all handles that the current thread builds before the returned guard
    /// is dropped.
    pub(crate) fn install(&'static self) -> metrics::LocalRecorderGuard<'static> {
        metrics::set_default_local_recorder(self)
    }

    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    pub(crate) fn described(&self) -> BTreeMap<String, Described> {
        self.described.lock().unwrap().clone()
    }

    /// Returns every series of values: the metric's name, its kind and the names of its labels.
    pub(crate) fn series(&self) -> Vec<(String, &'static str, Vec<String>)> {
        let values = self.values.lock().unwrap();
        let one = |((name, labels), value): (&(String, Labels), &Value)| {
            let kind = match value {
                Value::Counter(_) => "counter",
                Value::Gauge(_) => "gauge",
                Value::Histogram(_) => "histogram",
            };
            (name.clone(), kind, labels.keys().cloned().collect())
        };
        values.iter().map(one).collect()
    }

    /// Returns the values of the label `outcome` of each metric that has this label.
    pub(crate) fn outcomes(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut all = BTreeMap::<_, BTreeSet<_>>::new();
        for (name, labels) in self.values.lock().unwrap().keys() {
            if let Some(outcome) = labels.get("outcome") {
                all.entry(name.clone()).or_default().insert(outcome.clone());
            }
        }
        all
    }

    /// Returns all values of labels that are in use.
    pub(crate) fn label_values(&self) -> Vec<String> {
        let values = self.values.lock().unwrap();
        values.keys().flat_map(|(_, labels)| labels.values().cloned()).collect()
    }

    fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<Value> {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.values.lock().unwrap().get(&(name.to_owned(), labels)).cloned()
    }

    /// Returns the value of a counter or gauge with exactly these labels.
    #[track_caller]
    pub(crate) fn number(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        match self.find(name, labels) {
            Some(Value::Counter(n)) => n.load(Ordering::Relaxed) as f64,
            Some(Value::Gauge(bits)) => f64::from_bits(bits.load(Ordering::Relaxed)),
            other => panic!("{name} {labels:?} is {other:?}"),
        }
    }

    /// Returns the values of a histogram with exactly these labels.
    #[track_caller]
    pub(crate) fn sizes(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        match self.find(name, labels) {
            Some(Value::Histogram(sizes)) => sizes.0.lock().unwrap().clone(),
            other => panic!("{name} {labels:?} is {other:?}"),
        }
    }

    fn describe(&self, name: &KeyName, kind: &'static str, unit: Option<Unit>, help: &str) {
        let unit = unit.map_or("ratio", |unit| unit.as_str());
        let described = (kind, unit, help.to_owned());
        let before =
            self.described.lock().unwrap().insert(name.as_str().to_owned(), described.clone());
        assert!(before.is_none_or(|before| before == described), "{name:?} means two things");
    }

    fn register(&self, key: &Key, new: Value) -> Value {
        let label = |l: &metrics::Label| (l.key().to_owned(), l.value().to_owned());
        let key = (key.name().to_owned(), key.labels().map(label).collect());
        self.values.lock().unwrap().entry(key).or_insert(new).clone()
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(&name, "counter", unit, &help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(&name, "gauge", unit, &help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(&name, "histogram", unit, &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.register(key, Value::Counter(Arc::default())) {
            Value::Counter(n) => Counter::from_arc(n),
            other => panic!("{key} is {other:?}"),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.register(key, Value::Gauge(Arc::default())) {
            Value::Gauge(bits) => Gauge::from_arc(bits),
            other => panic!("{key} is {other:?}"),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.register(key, Value::Histogram(Arc::default())) {
            Value::Histogram(sizes) => Histogram::from_arc(sizes),
            other => panic!("{key} is {other:?}"),
        }
    }
}
