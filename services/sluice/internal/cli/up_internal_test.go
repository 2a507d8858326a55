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

// startMesh runs a mesh with a data directory until ctx is done. The channel ready is closed when the mesh is ready.
// The channel ended receives the error of the command.
func startMesh(ctx context.Context, t *testing.T, data string) (ready <-chan struct{}, ended <-chan error) {
	t.Helper()
	in, out := io.Pipe()
	root := (&tool{self: "sluice", out: out, errOut: io.Discard}).root()
	root.SetArgs([]string{"up", "--data", data, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--output", "json"})
	said, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(said)
		_, _ = bufio.NewReader(in).ReadString('\n') // if the mesh ends before it serves, ended receives the error
	}()
	go func() {
		done <- errors.Join(root.ExecuteContext(ctx), out.Close())
	}()
	return said, done
}

// A second mesh with the same data directory exits without writing to the directory. If it wrote new tokens, the tokens
// of the first mesh's callers would become invalid.
func TestUp_SecondMeshInAFolderWritesNothing(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ready, first := startMesh(ctx, t, data)
	<-ready
	for _, made := range []string{"tokens", "policies"} {
		if err := os.RemoveAll(filepath.Join(data, made)); err != nil {
			t.Fatal(err)
		}
	}
	_, second := startMesh(ctx, t, data)
	if err := <-second; !errors.Is(err, datadir.ErrInUse) {
		t.Errorf("the second mesh ended with %v", err)
	}
	for _, made := range []string{"tokens", "policies"} {
		if _, err := os.Stat(filepath.Join(data, made)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the second mesh created %s: %v", made, err)
		}
	}
	stop()
	if err := <-first; err != nil {
		t.Errorf("the first mesh ended with %v", err)
	}
}
