package gosched_test

import (
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// On a single processor, a goroutine repeatedly calls Yield. Network data that arrived before a call must be read
// during the call.
func TestYield_ReadsNetworkFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	out, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var read atomic.Int64
	go func() {
		for one := make([]byte, 1); ; {
			if _, err := in.Read(one); err != nil {
				return
			}
			read.Add(1)
		}
	}()
	const rounds = 200
	late := 0
	for i := range int64(rounds) {
		if _, err := out.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
		if gosched.Yield(); read.Load() <= i {
			late++
			for read.Load() <= i {
				time.Sleep(time.Millisecond)
			}
		}
	}
	if late > rounds/10 { // the system may deliver a byte late
		t.Errorf("%d of %d bytes were not read during Yield", late, rounds)
	}
}

// Many goroutines, more than there are processors, call Yield concurrently.
func TestYield_ManyGoroutines(t *testing.T) {
	done := make(chan bool)
	for range 50 {
		go func() {
			for range 200 {
				gosched.Yield()
			}
			done <- true
		}()
	}
	for range 50 {
		<-done
	}
}

// Work yields after its time slice has passed. Before that, it does not yield.
func TestWork_YieldsOnlyAfterLongWork(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		var s gosched.Work
		for range 100_000 {
			s.Step()
			s.Part()
		}
		gosched.Yield()
	})
	for name, step := range map[string]func(*gosched.Work){"Step": (*gosched.Work).Step, "Part": (*gosched.Work).Part} {
		t.Run(name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			var s gosched.Work
			var before atomic.Bool
			go before.Store(true)
			for end := time.Now().Add(5 * time.Millisecond); time.Now().Before(end); {
				step(&s)
			}
			if !before.Load() {
				t.Error("no other goroutine ran in 5 ms")
			}
		})
	}
}
