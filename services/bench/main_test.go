package bench_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/bench"
)

// TestMain runs the test program as a server of the benchmark if its first argument names a server.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1] != "echo" && os.Args[1] != "proxy" && os.Args[1] != "lean" {
		os.Exit(m.Run())
	}
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(args []string) error {
	switch args[0] {
	case "echo":
		return bench.Serve(context.Background(), args[1], bench.NewEcho())
	case "lean":
		return bench.Serve(context.Background(), args[1], bench.NewLean(args[2]))
	}
	proxy, err := bench.NewProxy(args[2])
	if err != nil {
		return err
	}
	return bench.Serve(context.Background(), args[1], proxy)
}
