package epochlease_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/epochlease"
)

// A gateway simulates a holder. Some responses to it are in transit. It uses the decisions of one epoch until its lease
// on that epoch expires.
type gateway struct {
	*epochlease.Holder
	queue []response
	// epoch is the epoch that the gateway uses. The field until is the time at which the lease on this epoch expires.
	// The field taken is the number of the last received response.
	epoch uint64
	until time.Time
	taken uint64
	// left is true if the gateway has left. No new responses are sent to it, but it may still receive the responses in
	// transit and use its lease.
	left bool
}

type response struct {
	number, epoch uint64
	until         time.Time
}

func (g *gateway) receive() {
	r := g.queue[0]
	g.queue = g.queue[1:]
	if r.epoch != g.epoch {
		g.epoch, g.until = r.epoch, time.Time{}
	}
	if !r.until.IsZero() {
		g.until = r.until
	}
	g.taken = r.number
}

// TestOlderUntil_NoGatewayUsesAnEndedEpoch simulates gateways that receive responses late, acknowledge them late, or
// leave, while epochs change. It checks that no gateway uses an older epoch after OlderUntil has returned the zero
// time. It also checks that OlderUntil never returns a time later than MaxDuration after the change of the epoch.
func TestOlderUntil_NoGatewayUsesAnEndedEpoch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		register, now, active, free := epochlease.New(), time.Unix(1_800_000_000, 0), uint64(1), uint64(0)
		changed := now
		var gateways []*gateway
		some := func() *gateway { return rapid.SampledFrom(gateways).Draw(t, "gateway") }
		send := func(g *gateway, leased bool) {
			var r response
			r.number = g.Record(now, func() (uint64, time.Time) {
				r.epoch = active
				if leased {
					r.until = now.Add(epochlease.MaxDuration)
				}
				return r.epoch, r.until
			})
			g.queue = append(g.queue, r)
		}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(*rapid.T) { gateways = append(gateways, &gateway{Holder: register.Enter(now)}) },
			"leave": func(t *rapid.T) {
				if len(gateways) > 0 {
					g := some()
					g.Leave()
					g.left = true
				}
			},
			"ask": func(t *rapid.T) {
				if len(gateways) > 0 {
					g := some()
					if g.left {
						return
					}
					if err := g.Acknowledge(g.taken); err != nil {
						t.Fatal(err)
					}
					send(g, rapid.Bool().Draw(t, "leased"))
				}
			},
			"take": func(t *rapid.T) {
				if len(gateways) > 0 {
					if g := some(); len(g.queue) > 0 {
						g.receive()
					}
				}
			},
			"change": func(*rapid.T) {
				active, changed = active+1, now
				for _, g := range gateways {
					if !g.left {
						send(g, false)
					}
				}
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				until, _ := register.OlderUntil(active, now)
				if until.IsZero() {
					free = active
				} else if until.After(changed.Add(epochlease.MaxDuration)) {
					t.Fatalf("an older epoch may be used until %v after the change", until.Sub(changed))
				}
				for i, g := range gateways {
					if g.epoch < free && g.until.After(now) {
						t.Fatalf("gateway %d uses epoch %d, but OlderUntil has returned the zero time for epoch %d", i, g.epoch, free)
					}
				}
			},
		})
	})
}

func TestAcknowledge_EndsTheLeasesOnOlderEpochs(t *testing.T) {
	t.Parallel()
	register, now, active := epochlease.New(), time.Unix(1_800_000_000, 0), uint64(1)
	h := register.Enter(now)
	say := func(until time.Time) uint64 {
		return h.Record(now, func() (uint64, time.Time) { return active, until })
	}
	first := say(now.Add(epochlease.MaxDuration))
	if err := h.Acknowledge(first); err != nil {
		t.Fatal(err)
	}
	active = 2
	until, freed := register.OlderUntil(2, now)
	if !until.Equal(now.Add(epochlease.MaxDuration)) {
		t.Fatalf("epoch 1 may be used until %v", until)
	}
	change := say(time.Time{})
	select {
	case <-freed:
		t.Fatal("freed is closed although the holder has acknowledged nothing")
	default:
	}
	if err := h.Acknowledge(change); err != nil {
		t.Fatal(err)
	}
	select {
	case <-freed:
	default:
		t.Error("freed is not closed although the holder gave up its lease")
	}
	if until, _ := register.OlderUntil(2, now); !until.IsZero() {
		t.Errorf("epoch 1 may still be used until %v", until)
	}
	if err := h.Acknowledge(change + 1); !errors.Is(err, epochlease.ErrDisorder) {
		t.Errorf("a response that was not sent is taken with %v", err)
	}
}
