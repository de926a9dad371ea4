// Two members of a group that commit what they poll, with one of three clients.
// Arguments: franz-go, franz-go-consumer, franz-go-share, sarama or kafka-go; bootstrap servers, topic, group.
// With kafka-go-pool, they are one member, which commits from two goroutines over a pool of connections.
//
// Prints "assigned MEMBER", "committed MEMBER", "refused MEMBER TEXT" and "error MEMBER TEXT".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

const heartbeat = 100 * time.Millisecond
const backoff = 20 * time.Millisecond

type member struct {
	number                int
	address, topic, group string
}

var printing sync.Mutex

func (m member) say(word string, more ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(append([]any{word, m.number}, more...)...)
}

func (m member) fail(err error) {
	m.say("error", fmt.Sprintf("%T: %v", err, err))
}

func main() {
	clients := map[string]func(member){
		"franz-go":          func(m member) { m.franz() },
		"franz-go-consumer": func(m member) { m.franz(kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer())) },
		"franz-go-share":    member.franzShare,
		"sarama":            member.sarama,
		"kafka-go":          member.kafkaGo,
	}
	if os.Args[1] == "kafka-go-pool" {
		pool(os.Args[2], os.Args[3], os.Args[4])
	}
	run := clients[os.Args[1]]
	for number := range 2 {
		go run(member{number, os.Args[2], os.Args[3], os.Args[4]})
	}
	select {}
}

func (m member) franz(more ...kgo.Opt) {
	client, err := kgo.NewClient(append(more,
		kgo.SeedBrokers(m.address),
		kgo.ConsumerGroup(m.group),
		kgo.ConsumeTopics(m.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(heartbeat),
		kgo.RetryBackoffFn(func(int) time.Duration { return backoff }),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { m.say("assigned") }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { m.say("error", "lost", lost) }),
	)...)
	if err != nil {
		m.fail(err)
		return
	}
	for {
		fetches := client.PollFetches(context.Background())
		for _, failed := range fetches.Errors() {
			m.fail(failed.Err)
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
			m.fail(err)
		} else {
			m.say("committed")
		}
	}
}

// A broken connection releases the records, so that their acknowledgement may come too late.
func (m member) franzShare() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(m.address),
		kgo.ShareGroup(m.group),
		kgo.ConsumeTopics(m.topic),
		kgo.RetryBackoffFn(func(int) time.Duration { return backoff }),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				m.say("refused", err)
			} else {
				m.say("committed")
			}
		}),
	)
	if err != nil {
		m.fail(err)
		return
	}
	for {
		fetches := client.PollFetches(context.Background())
		for _, failed := range fetches.Errors() {
			m.fail(failed.Err)
		}
		for _, record := range fetches.Records() {
			record.Ack(kgo.AckAccept)
		}
	}
}

func (m member) sarama() {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Heartbeat.Interval = heartbeat
	config.Consumer.Retry.Backoff = backoff
	config.Consumer.Return.Errors = true
	config.Metadata.Retry.Backoff = backoff
	group, err := sarama.NewConsumerGroup([]string{m.address}, m.group, config)
	if err != nil {
		m.fail(err)
		return
	}
	go func() {
		for err := range group.Errors() {
			m.note(err)
		}
	}()
	for {
		if err := group.Consume(context.Background(), []string{m.topic}, m); err != nil {
			m.note(err)
		}
	}
}

// note reports an error that a broker responded with. A broken connection is what the test is about.
func (m member) note(err error) {
	var refusal sarama.KError
	if errors.As(err, &refusal) {
		m.fail(err)
	} else {
		m.say("broken", err)
	}
}

func (m member) Setup(sarama.ConsumerGroupSession) error {
	m.say("assigned")
	return nil
}

func (m member) Cleanup(sarama.ConsumerGroupSession) error {
	return nil
}

func (m member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		session.Commit()
		m.say("committed")
	}
	return nil
}

// Printf reports errors in the log of kafka-go that a broker responded with.
func (m member) Printf(text string, values ...any) {
	for _, value := range values {
		var refusal kafka.Error
		// Rebalances are counted.
		if err, ok := value.(error); ok && errors.As(err, &refusal) && refusal != kafka.RebalanceInProgress {
			m.say("error", fmt.Sprintf(text, values...))
			return
		}
	}
	m.say("broken", fmt.Sprintf(text, values...))
}

func (m member) kafkaGo() {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:           []string{m.address},
		GroupID:           m.group,
		Topic:             m.topic,
		StartOffset:       kafka.FirstOffset,
		HeartbeatInterval: heartbeat,
		MaxWait:           heartbeat,
		ReadBackoffMin:    backoff,
		ReadBackoffMax:    backoff,
		JoinGroupBackoff:  backoff,
		ErrorLogger:       m,
	})
	go func() {
		for range time.Tick(heartbeat) {
			for range reader.Stats().Rebalances {
				m.say("assigned")
			}
		}
	}()
	for {
		message, err := reader.FetchMessage(context.Background())
		if err == nil {
			err = reader.CommitMessages(context.Background(), message)
		}
		if err != nil {
			m.say("broken", err)
		} else {
			m.say("committed")
		}
	}
}

// pool commits growing offsets of two partitions, each from its own goroutine. Errors are not repeated.
func pool(address, topic, group string) {
	client := &kafka.Client{Addr: kafka.TCP(address), Transport: &kafka.Transport{}}
	joining := &kafka.JoinGroupRequest{
		GroupID:          group,
		SessionTimeout:   5 * time.Minute,
		RebalanceTimeout: 5 * time.Minute,
		ProtocolType:     "consumer",
		Protocols: []kafka.GroupProtocol{
			{Name: "range", Metadata: kafka.GroupProtocolSubscription{Topics: []string{topic}}},
		},
	}
	ctx := context.Background()
	joined, err := client.JoinGroup(ctx, joining)
	for ; err != nil || joined.Error != nil; joined, err = client.JoinGroup(ctx, joining) {
		if err == nil {
			joining.MemberID = joined.MemberID
		}
		time.Sleep(backoff)
	}
	synced, err := client.SyncGroup(ctx, &kafka.SyncGroupRequest{
		GroupID:      group,
		GenerationID: joined.GenerationID,
		MemberID:     joined.MemberID,
		ProtocolType: "consumer",
		ProtocolName: "range",
		Assignments: []kafka.SyncGroupRequestAssignment{{
			MemberID:   joined.MemberID,
			Assignment: kafka.GroupProtocolAssignment{AssignedPartitions: map[string][]int{topic: {0, 1}}},
		}},
	})
	if err = errors.Join(err, synced.Error); err != nil {
		member{}.fail(err)
	}
	member{}.say("assigned")
	commit := func(number int, offsets ...kafka.OffsetCommit) {
		response, err := client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID:      group,
			GenerationID: joined.GenerationID,
			MemberID:     joined.MemberID,
			Topics:       map[string][]kafka.OffsetCommit{topic: offsets},
		})
		if err == nil {
			err = response.Topics[topic][0].Error
		}
		if err != nil {
			member{number: number}.fail(err)
		} else {
			member{number: number}.say("committed")
		}
	}
	commit(0, kafka.OffsetCommit{Partition: 0}, kafka.OffsetCommit{Partition: 1})
	for number := range 2 {
		go func() {
			for offset := int64(1); ; offset++ {
				commit(number, kafka.OffsetCommit{Partition: number, Offset: offset})
				time.Sleep(backoff)
			}
		}()
	}
	select {}
}
