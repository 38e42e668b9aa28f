#[test]
fn rabbitmq_consumers_killed_at_each_arrow() {
    killed_at_each_arrow("rabbitmq");
}

#[test]
fn redis_streams_consumers_killed_at_each_arrow() {
    killed_at_each_arrow("streams");
}

#[test]
fn nats_jetstream_consumers_killed_at_each_arrow() {
    killed_at_each_arrow("nats");
}

/// On librdkafka's mock cluster.
#[test]
fn kafka_consumers_killed_at_each_arrow() {
    killed_at_each_arrow("kafka");
}
