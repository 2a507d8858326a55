package stdio

import (
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// TestPause_GrowsWithQuickStarts checks that the pauses between consecutive quick starts increase.
func TestPause_GrowsWithQuickStarts(t *testing.T) {
	for quick, want := range map[int]time.Duration{
		0: 0, 2: 0, 3: time.Second, 4: 2 * time.Second, 5: 4 * time.Second, 6: 8 * time.Second, 7: 8 * time.Second, 1 << 40: 8 * time.Second,
	} {
		if got := (&host{quick: quick}).pause(); got != want {
			t.Errorf("after %d quick starts: %v, want %v", quick, got, want)
		}
	}
}

// TestForget_IgnoresReplacedHost checks that a removed host's timer does not affect the host that has replaced it.
func TestForget_IgnoresReplacedHost(t *testing.T) {
	key := principal.Key{Tenant: "acme", Subject: "ana"}
	old, now := &host{key: key}, &host{key: key}
	s := &transport{hosts: map[principal.Key]*host{key: now}}
	if s.expire(old); s.hosts[key] != now {
		t.Error("the current host was removed")
	}
	if s.expire(now); s.hosts[key] != nil {
		t.Error("an unused host is kept")
	}
}
