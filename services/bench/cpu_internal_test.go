package bench

import (
	"os"
	"runtime"
	"testing"
	"time"
)

func TestParseProcess_ReadsUserAndSystemTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want time.Duration
		ok   bool
	}{
		"user and system time are added": {"42 (bench) S 1 42 42 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 9 0 100", 120 * time.Millisecond, true},
		"a name may look like fields":    {"42 (a) S 9 9 (b) S 1 42 42 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 9 0 100", 120 * time.Millisecond, true},
		"a short line":                   {"42 (bench) S 1 42", 0, false},
		"no number":                      {"42 (bench) S 1 42 42 0 -1 4194304 100 0 0 0 x 5 0", 0, false},
		"nothing":                        {"", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseProcess(tc.text)
			if got != tc.want || (err == nil) != tc.ok {
				t.Errorf("got %v and %v, want %v", got, err, tc.want)
			}
		})
	}
}

func TestParseMachine_LeavesOutIdleTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want time.Duration
		ok   bool
	}{
		"idle and waiting are not busy": {"cpu  1 2 4 800 900 8 16 32 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n", 630 * time.Millisecond, true},
		"another file":                  {"Mem: 1 2 3 4 5 6 7 8 9\n", 0, false},
		"nothing":                       {"", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseMachine(tc.text)
			if got != tc.want || (err == nil) != tc.ok {
				t.Errorf("got %v and %v, want %v", got, err, tc.want)
			}
		})
	}
}

func TestMeter_MeasuresThisProcess(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux reports the CPU time of a process in /proc")
	}
	m := startMeter([]string{"self"}, []int{os.Getpid()})
	var used time.Duration
	for begin := time.Now(); used < 5*clockTick && time.Since(begin) < 30*time.Second; {
		cpu, _ := m.stop()
		if len(cpu) != 1 || cpu[0].Process != "self" {
			t.Fatalf("the meter gives %v, want one process", cpu)
		}
		used = cpu[0].Used
	}
	if used < 5*clockTick {
		t.Errorf("half a minute of work is measured as %v", used)
	}
}

func TestMeter_MeasuresNothingForAnEndedProcess(t *testing.T) {
	t.Parallel()
	m := startMeter([]string{"gone"}, []int{1 << 30})
	if cpu, foreign := m.stop(); cpu != nil || foreign != 0 {
		t.Errorf("the meter gives %v and %v, want nothing", cpu, foreign)
	}
}
