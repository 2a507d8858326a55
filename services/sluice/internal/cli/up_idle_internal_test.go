package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice"
)

// waitIdle returns true after the idle time. It does not return true while work is pending, or may be pending.
func TestWaitIdle_EndsAfterTheIdleTimeWithoutWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		answers := []struct {
			work string
			err  error
		}{{"1 open approval(s)", nil}, {"", errors.New("the store is closed")}, {"", nil}}
		asked := 0
		busy := func(context.Context) (string, error) {
			a := answers[asked]
			asked++
			return a.work, a.err
		}
		if !waitIdle(t.Context(), busy, new(sluice.Connections), time.Hour, slog.New(slog.DiscardHandler)) {
			t.Error("it ended early")
		}
		if took := time.Since(start); asked != 3 || took < time.Hour || took > 2*time.Hour {
			t.Errorf("it asked %d times in %v", asked, took)
		}
	})
}

func TestWaitIdle_StaysWhileAClientIsConnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ends := make(chan net.Conn, 1)
		connections := new(sluice.Connections)
		listener := connections.Count(pipeListener{ends})
		ours, theirs := net.Pipe()
		ends <- theirs
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		free := func(context.Context) (string, error) { return "", nil }
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		if waitIdle(ctx, free, connections, time.Hour, slog.New(slog.DiscardHandler)) {
			t.Error("it ended although a client is connected")
		}
		start := time.Now()
		if err := errors.Join(conn.Close(), conn.Close(), ours.Close()); err != nil { // a second Close does not count
			t.Fatal(err)
		}
		if !waitIdle(t.Context(), free, connections, time.Hour, slog.New(slog.DiscardHandler)) || time.Since(start) < time.Hour {
			t.Errorf("it ended after %v", time.Since(start))
		}
	})
}

type pipeListener struct{ conns chan net.Conn }

func (l pipeListener) Accept() (net.Conn, error) { return <-l.conns, nil }
func (l pipeListener) Close() error              { return io.EOF }
func (l pipeListener) Addr() net.Addr            { return &net.TCPAddr{} }
