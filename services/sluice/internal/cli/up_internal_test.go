package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

// start starts a mesh with this data folder, until ctx ends. ready is closed when the mesh serves, and ended receives
// its error.
func start(ctx context.Context, t *testing.T, data string) (ready <-chan struct{}, ended <-chan error) {
	t.Helper()
	in, out := io.Pipe()
	root := (&tool{self: "sluice", out: out, errOut: io.Discard}).root()
	root.SetArgs([]string{"up", "--data", data, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--output", "json"})
	said, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(said)
		_, _ = bufio.NewReader(in).ReadString('\n') // if the mesh ends first, ended says why
	}()
	go func() {
		done <- errors.Join(root.ExecuteContext(ctx), out.Close())
	}()
	return said, done
}

// A second mesh in a folder writes nothing there: if it wrote new tokens, it would lock out the callers of the first.
func TestASecondMeshInAFolderWritesNothing(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ready, first := start(ctx, t, data)
	<-ready
	for _, made := range []string{"tokens", "policies"} {
		if err := os.RemoveAll(filepath.Join(data, made)); err != nil {
			t.Fatal(err)
		}
	}
	_, second := start(ctx, t, data)
	if err := <-second; !errors.Is(err, datadir.ErrInUse) {
		t.Errorf("the second ended with %v", err)
	}
	for _, made := range []string{"tokens", "policies"} {
		if _, err := os.Stat(filepath.Join(data, made)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the second made %s: %v", made, err)
		}
	}
	stop()
	if err := <-first; err != nil {
		t.Errorf("the first ended with %v", err)
	}
}
