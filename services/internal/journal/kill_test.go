package journal_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// victimDir is the directory to which the test binary writes records until it is killed.
var victimDir = flag.String("victim", "", "write records to this folder until killed")

func TestMain(m *testing.M) {
	flag.Parse()
	if *victimDir != "" {
		if err := writeForever(*victimDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// writeForever writes records from many goroutines. It prints the decision id of each written record to standard
// output.
func writeForever(dir string) error {
	cfg := config(dir)
	cfg.SegmentBytes = 64 << 10
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	j, err := journal.Open(cfg)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			rec := fullRecord()
			for {
				rec.DecisionID = rand.Text()
				if j.Intent(context.Background(), &rec) != nil || j.Refusal(context.Background(), &rec) != nil {
					return
				}
				mu.Lock()
				fmt.Println(rec.DecisionID)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return j.Close()
}

func TestJournal_KeepsAcknowledgedRecordsWhenKilled(t *testing.T) {
	t.Parallel()
	rounds := 20
	if testing.Short() {
		rounds = 3
	}
	dir := t.TempDir()
	var acknowledged []string
	for round := range rounds {
		acknowledged = append(acknowledged, killVictim(t, dir, round%2 == 0)...)
	}
	closeJournal(t, open(t, config(dir)))
	report := verified(t, dir)
	t.Logf("%d acknowledged, %d recorded as calls", len(acknowledged), report.Calls.Records)
	if len(acknowledged) == 0 {
		t.Fatal("nothing was acknowledged: the test shows nothing")
	}
	for _, chain := range []string{"calls", "refusals"} {
		recorded := map[string]bool{}
		for _, id := range ids(t, dir, chain) {
			recorded[id] = true
		}
		for _, id := range acknowledged {
			if !recorded[id] {
				t.Errorf("%s was acknowledged and is not in %s", id, chain)
			}
		}
	}
}

// killVictim starts the test binary as a process that writes records (the victim), and kills it after a random time. It
// returns the decision ids that the victim has printed. If early is true, the victim is usually killed while it starts.
// Otherwise it is usually killed while it writes.
func killVictim(t *testing.T, dir string, early bool) []string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-victim", dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := func() {
		time.AfterFunc(time.Duration(mathrand.IntN(150))*time.Millisecond, func() { cmd.Process.Kill() })
	}
	if early {
		kill()
	}
	var ids []string
	for in := bufio.NewReader(out); ; {
		// A line without a newline does not count as printed.
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		if ids = append(ids, line[:len(line)-1]); len(ids) == 1 && !early {
			kill()
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.Exited() {
		t.Fatalf("the victim was not killed: %v", err)
	}
	return ids
}
