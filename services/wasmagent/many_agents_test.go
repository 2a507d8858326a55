package wasmagent_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// TestManyAgents_MeasureMemoryAndTime measures the memory of many agents. It also measures the duration of prompts,
// both for an agent that must be loaded and for an agent that is in memory. Run the test with `make stress RUN=many`.
func TestManyAgents_MeasureMemoryAndTime(t *testing.T) {
	many, err := strconv.Atoi(os.Getenv("SLUICE_MANY"))
	if err != nil || many < 100 {
		t.Skip("the measurement takes minutes: run `make stress RUN=many`")
	}
	l := newRestartableService(t, nil)
	owner := func(i int) client { return l.onBehalfOfUser(t, fmt.Sprint("owner-", i%10)) }
	var ids []string
	begin := time.Now()
	for i := range many {
		c := owner(i)
		id := c.create(new(wasmagentv1.CreateAgentRequest))
		c.mustPrompt(id, "todo pending x\nwrite a.txt hello")
		ids = append(ids, id)
	}
	t.Logf("%d agents were created and prompted once, in %s; %s", many, time.Since(begin).Round(time.Second), memory(t))
	l.close()
	l.start()
	owner(0).mustPrompt(ids[0], "say x") // compiles the module before the measurement
	t.Logf("after a restart: %s", memory(t))
	picked := rand.Perm(many)[:many/10]
	measure := func(what string, each []int) {
		var took []time.Duration
		for _, i := range each {
			c := owner(i)
			at := time.Now()
			c.mustPrompt(ids[i], "say x")
			took = append(took, time.Since(at))
		}
		t.Logf("%s: %d prompts, %s; %s", what, len(took), quantiles(took), memory(t))
	}
	measure("asleep", picked)
	last := picked[len(picked)-min(len(picked), 200):] // all of these agents are in memory
	measure("awake", last)
}

// TestManyPrompts_MeasureTime measures how the duration of a prompt depends on the number of earlier prompts to the
// same agent. Run the test with `make stress RUN=many`.
func TestManyPrompts_MeasureTime(t *testing.T) {
	many, err := strconv.Atoi(os.Getenv("SLUICE_MANY"))
	if err != nil || many < 100 {
		t.Skip("the measurement takes minutes: run `make stress RUN=many`")
	}
	c := newRestartableService(t, nil).onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{MaxTurns: new(int32(10_000))})
	for at := 0; at < min(many, 10_000); { // an agent has at most 10,000 turns
		var took []time.Duration
		for range many / 10 {
			begin := time.Now()
			c.mustPrompt(id, "say x")
			took = append(took, time.Since(begin))
			at++
		}
		t.Logf("%d prompts: %s; %s", at, quantiles(took), memory(t))
	}
}

func quantiles(took []time.Duration) string {
	slices.Sort(took)
	return fmt.Sprintf("p50 %s, p99 %s", took[len(took)/2].Round(10*time.Microsecond), took[len(took)*99/100].Round(10*time.Microsecond))
}

func memory(t *testing.T) string {
	t.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Sprintf("%d MiB of heap in use", m.HeapInuse>>20)
	}
	_, rest, _ := bytes.Cut(text, []byte("VmRSS:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return fmt.Sprintf("%d MiB of heap in use, RSS %s", m.HeapInuse>>20, bytes.TrimSpace(line))
}
