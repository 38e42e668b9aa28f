//! Random histories of one server and two clients. A second record of all writes tells what the
//! server's data lack: a loss in the marker has to cover that whenever a batch may be executed.

use std::collections::BTreeSet;

use super::*;

const START: u64 = 1_790_000_000_000;
const LEASE: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug)]
enum Step {
    Batch(usize),
    Save,
    /// Who knows more than the copy comes first: nobody else can notice it.
    PutBack,
    Rename,
    /// With the copy.
    Restart,
    Empty,
    /// The address leads to another vote for a batch of this client.
    Detour(usize),
    /// This client writes to a promoted replica, and this server is promoted again, as it was.
    Promotions(usize),
}

#[derive(Clone)]
struct Server {
    marker: String,
    note: Option<Note>,
    replid: u64,
    process: Process,
    data: BTreeSet<usize>,
}

impl Server {
    fn new(deployment: u64, vote: u64, life: u64) -> Self {
        let replid = ReplicationId::of(life);
        let process = Process { run: life, ..Process::fresh() };
        let born = Marker { process, ..Marker::born(deployment, vote, life, replid) };
        let marker = Marker { epoch: 1, written: START, ..born }.to_string();
        Self { marker, note: None, replid: life, process, data: BTreeSet::new() }
    }

    fn shown(&self, micros: u64) -> Shown {
        Shown {
            marker: Marker::parse(&self.marker, micros / 1_000),
            is_empty: self.marker.is_empty(),
            note: self.note,
            replid: ReplicationId::of(self.replid),
            process: self.process,
            evicted: 0,
            stayed: false,
            disturbed: false,
            micros,
        }
    }

    fn moved(&self, life: u64) -> Self {
        Self { replid: life, process: Process { run: life, ..self.process }, ..self.clone() }
    }

    fn renamed(&self, life: u64) -> Self {
        Self { replid: life, ..self.clone() }
    }
}

struct World {
    server: Server,
    other: Server,
    copy: Server,
    clients: [Remembered; 2],
    /// Nothing that begins a history has happened since this client's last batch.
    quiet: [bool; 2],
    epoch: u64,
    clock_error: Duration,
    /// The server's clock at each write, in ms.
    writes: Vec<u64>,
    now: u64,
    /// Names of servers' lives and of histories.
    names: u64,
}

impl World {
    fn new(clock_error: Duration) -> Self {
        let server = Server::new(1, 2, 100);
        let mut world = Self {
            copy: server.clone(),
            server,
            other: Server::new(1, 9, 101),
            clients: [Remembered::default(); 2],
            quiet: [true; 2],
            epoch: 1,
            clock_error,
            writes: Vec::new(),
            now: START * 1_000,
            names: 200,
        };
        // Who has never seen named data can take over another vote's.
        for client in 0..2 {
            world.batch(client, 0).expect("the first batch");
        }
        world
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    fn asked(&mut self, client: usize) -> Asked {
        Asked {
            max_ttl: LEASE,
            clock_error: self.clock_error,
            epoch: Some(self.epoch),
            remembers: self.clients[client],
            name: self.name(),
            ..super::asked()
        }
    }

    fn knows_more(&self, client: usize, than: &Server) -> bool {
        let shown = than.shown(self.now + 2 * micros(self.clock_error));
        let remembers = self.clients[client];
        let asked = Asked { clock_error: self.clock_error, remembers, ..super::asked() };
        shown.marker.is_some_and(|m| is_put_back(&m, m.noted(shown.note).0, &asked))
    }

    fn take(&mut self, step: Step, error: i64) -> Result<(), TestCaseError> {
        if !matches!(step, Step::Batch(_) | Step::Save | Step::Rename | Step::Detour(_)) {
            self.quiet = [false; 2];
        }
        match step {
            Step::Batch(client) => self.batch(client, error)?,
            Step::Save => self.copy = self.server.clone(),
            Step::PutBack => {
                let copy = self.copy.clone();
                if let Some(first) = (0..2).find(|client| self.knows_more(*client, &copy)) {
                    let Server { marker, note, data, .. } = copy;
                    self.server = Server { marker, note, data, ..self.server.clone() };
                    self.batch(first, error)?;
                }
            }
            Step::Rename => self.rename(error)?,
            Step::Restart => {
                let life = self.name();
                self.server = self.copy.moved(life);
            }
            Step::Empty => {
                let nothing = (String::new(), None, BTreeSet::new());
                (self.server.marker, self.server.note, self.server.data) = nothing;
            }
            Step::Detour(client) => {
                let (asked, shown) = (self.asked(client), self.other.shown(self.now));
                let verdict = judge(&shown, &asked);
                prop_assert!(matches!(verdict, Verdict::Foreign(_)), "{verdict:?}");
            }
            Step::Promotions(client) => {
                let life = self.name();
                let replica = self.server.moved(life);
                let master = std::mem::replace(&mut self.server, replica);
                self.epoch += 1;
                self.batch(client, error)?;
                self.write(error);
                self.clients[client].newest.seq += 1;
                self.server = master;
                self.epoch += 1;
                self.quiet = [false; 2];
            }
        }
        Ok(())
    }

    fn rename(&mut self, error: i64) -> Result<(), TestCaseError> {
        let life = self.name();
        let renamed = self.server.renamed(life);
        let micros = self.now.saturating_add_signed(error);
        for client in 0..2 {
            let asked = self.asked(client);
            let begins = |server: &Server| match judge(&server.shown(micros), &asked) {
                Verdict::Goes(m, change) => Some((change.begun, m.losses)),
                _ => None,
            };
            prop_assert_eq!(begins(&self.server), begins(&renamed));
        }
        self.server = renamed;
        Ok(())
    }

    fn write(&mut self, error: i64) {
        self.server.data.insert(self.writes.len());
        self.writes.push(self.now.saturating_add_signed(error) / 1_000);
    }

    /// `error` is that of the server's clock in µs.
    fn batch(&mut self, client: usize, error: i64) -> Result<(), TestCaseError> {
        let micros = self.now.saturating_add_signed(error);
        let asked = self.asked(client);
        let (shown, before) = (self.server.shown(micros), self.server.marker.clone());
        let Verdict::Goes(m, change) = judge(&shown, &asked) else {
            return Err(TestCaseError::fail("refused"));
        };
        prop_assert!(shown.is_empty || shown.marker.is_some(), "not believed: {before}");
        let apart = 2 * millis(asked.clock_error);
        for (number, at) in self.writes.iter().enumerate() {
            let covers = |loss: Loss| loss.from <= at + apart && *at <= loss.to + apart;
            let is_there = self.server.data.contains(&number);
            prop_assert!(
                is_there || m.losses.iter().any(covers),
                "write {number} at {at} is lost, and {m} does not say so"
            );
        }
        prop_assert!(!(change.begun && self.quiet[client]), "needless: {before} to {m}");
        self.quiet[client] = true;
        if change.begun {
            prop_assert!(m.generation > self.clients[client].newest.generation);
            prop_assert_eq!(m.quarantine_end(), micros / 1_000 + m.quarantine);
        }
        if m.quarantine_end() <= micros / 1_000 {
            self.write(error);
        }
        self.server.marker = m.to_string();
        let note = self.server.note.filter(|n| n.history == m.history);
        let seq = note.map_or(0, |note| note.seq) + 1;
        let Marker { history, generation, .. } = m;
        self.server.note = Some(Note { history, generation, seq, micros });
        let facts = m.facts((self.server.note, micros), change, &asked, &Arc::from("server"));
        self.clients[client].learn(&facts);
        Ok(())
    }
}

fn steps() -> impl Strategy<Value = Vec<(Step, u64, i64)>> {
    let step = prop_oneof![
        6 => (0..2_usize).prop_map(Step::Batch),
        2 => Just(Step::Save),
        2 => Just(Step::PutBack),
        1 => Just(Step::Rename),
        1 => Just(Step::Restart),
        1 => Just(Step::Empty),
        1 => (0..2_usize).prop_map(Step::Detour),
        1 => (0..2_usize).prop_map(Step::Promotions),
    ];
    proptest::collection::vec((step, 0..400_u64, -1_000_i64..=1_000), 1..40)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_the_data_lack_is_a_loss_on_record(all in steps(), largest in 0..100_i64) {
        let mut world = World::new(Duration::from_millis(largest.unsigned_abs()));
        for (step, gap, error) in all {
            world.now += gap * 1_000;
            // Thousandths of E, and E in ms: the product is in µs.
            world.take(step, error * largest)?;
        }
    }
}
