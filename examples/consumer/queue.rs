//! A consumer group: on a Redis stream, or in memory with the same manners. A message that was read
//! stays pending until it is acknowledged, and is handed to somebody else when it has been pending
//! for too long.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimOptions, StreamAutoClaimReply, StreamId};
use redis::streams::{StreamReadOptions, StreamReadReply};

type Failure = Box<dyn Error + Send + Sync>;
const GROUP: &str = "billing";

/// A message: the broker's id, which is new with every sending, the sender's own, and when the
/// sender made it, which is the same however often it is sent.
#[derive(Clone, Debug)]
pub struct Message {
    pub id: String,
    pub key: String,
    pub body: String,
    pub created: SystemTime,
}

/// Where messages come from.
pub enum Queue {
    Memory(Mutex<Memory>),
    Redis { connection: MultiplexedConnection, stream: String },
}

#[derive(Default)]
pub struct Memory {
    fresh: VecDeque<Message>,
    pending: BTreeMap<String, (Instant, Message)>,
    parked: Vec<Message>,
    sent: usize,
}

impl Queue {
    /// A stream of this name on the server at `url`; without one, in memory.
    pub async fn open(url: Option<&str>, stream: &str) -> Result<Self, Failure> {
        let Some(url) = url else { return Ok(Self::Memory(Mutex::default())) };
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let () = connection.xgroup_create_mkstream(stream, GROUP, "0").await?;
        Ok(Self::Redis { connection, stream: stream.to_owned() })
    }

    /// Sends a message that was made then.
    pub async fn send(&self, key: &str, body: &str, created: SystemTime) -> Result<(), Failure> {
        match self {
            Self::Memory(memory) => {
                let mut m = memory.lock().expect("no one panics");
                m.sent += 1;
                let id = m.sent.to_string();
                m.fresh.push_back(Message { id, key: key.into(), body: body.into(), created });
                Ok(())
            }
            Self::Redis { connection, stream } => {
                let created = created.duration_since(UNIX_EPOCH)?.as_millis().to_string();
                let fields = [("key", key), ("body", body), ("created", &created)];
                Ok(connection.clone().xadd(stream, "*", &fields).await?)
            }
        }
    }

    /// The next message for `consumer`: one that somebody left pending for `idle`, or a new one.
    pub async fn next(&self, consumer: &str, idle: Duration) -> Result<Option<Message>, Failure> {
        match self {
            Self::Memory(memory) => Ok(memory.lock().expect("no one panics").next(idle)),
            Self::Redis { connection, stream } => {
                let mut c = connection.clone();
                let ms = idle.as_millis() as usize;
                let one = StreamAutoClaimOptions::default().count(1);
                let left: StreamAutoClaimReply =
                    c.xautoclaim_options(stream, GROUP, consumer, ms, "0-0", one).await?;
                if let Some(id) = left.claimed.first() {
                    return Ok(Some(message(id)?));
                }
                let one = StreamReadOptions::default().group(GROUP, consumer).count(1);
                let new: Option<StreamReadReply> = c.xread_options(&[stream], &[">"], &one).await?;
                let ids = new.iter().flat_map(|r| &r.keys).flat_map(|k| &k.ids);
                ids.map(message).next().transpose()
            }
        }
    }

    /// The message is dealt with: it never comes again.
    pub async fn ack(&self, message: &Message) -> Result<(), Failure> {
        match self {
            Self::Memory(memory) => {
                memory.lock().expect("no one panics").pending.remove(&message.id);
                Ok(())
            }
            Self::Redis { connection, stream } => {
                Ok(connection.clone().xack(stream, GROUP, &[&message.id]).await?)
            }
        }
    }

    /// Puts the message where a person will look at it, and acknowledges it, in one step.
    pub async fn park(&self, message: &Message) -> Result<(), Failure> {
        match self {
            Self::Memory(memory) => {
                let mut m = memory.lock().expect("no one panics");
                m.pending.remove(&message.id);
                m.parked.push(message.clone());
                Ok(())
            }
            Self::Redis { connection, stream } => {
                let fields = [("key", &message.key), ("body", &message.body)];
                let mut both = redis::pipe();
                both.atomic().xadd(format!("{stream}:parked"), "*", &fields).ignore();
                both.xack(stream, GROUP, &[&message.id]).ignore();
                Ok(both.query_async(&mut connection.clone()).await?)
            }
        }
    }

    /// How many messages were parked.
    pub async fn parked(&self) -> Result<usize, Failure> {
        match self {
            Self::Memory(memory) => Ok(memory.lock().expect("no one panics").parked.len()),
            Self::Redis { connection, stream } => {
                Ok(connection.clone().xlen(format!("{stream}:parked")).await?)
            }
        }
    }

    /// Removes the streams of this run.
    pub async fn clear(&self) -> Result<(), Failure> {
        if let Self::Redis { connection, stream } = self {
            let () = connection.clone().del(&[stream.clone(), format!("{stream}:parked")]).await?;
        }
        Ok(())
    }
}

impl Memory {
    fn next(&mut self, idle: Duration) -> Option<Message> {
        let now = Instant::now();
        let left = self.pending.values_mut().find(|(since, _)| now - *since >= idle);
        if let Some((since, message)) = left {
            *since = now;
            return Some(message.clone());
        }
        let message = self.fresh.pop_front()?;
        self.pending.insert(message.id.clone(), (now, message.clone()));
        Some(message)
    }
}

fn message(id: &StreamId) -> Result<Message, Failure> {
    let field = |name| id.get::<String>(name).ok_or(format!("message without field {name:?}"));
    let created = UNIX_EPOCH + Duration::from_millis(field("created")?.parse()?);
    Ok(Message { id: id.id.clone(), key: field("key")?, body: field("body")?, created })
}
