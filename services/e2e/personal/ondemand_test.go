package personal_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// newOwnMesh creates a home directory with a mesh that is not running. Cursor's only server is behind this mesh.
func newOwnMesh(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	h.write(cursorPath, cursorFile(h))
	h.check(0, []string{"init", "--yes", "cursor"})
	m, found := h.mesh()
	if !found {
		t.Fatal("init started no mesh")
	}
	h.end(m, syscall.SIGTERM)
	return h
}

func TestStdio_ManyClientsAtOnceStartOneMesh(t *testing.T) {
	t.Parallel()
	h := newOwnMesh(t)
	const clients = 16
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			s := h.connect(h.program, "stdio", "--server", "notes", "--as", "cursor")
			if text, isError := h.call(s, "list_notes", nil); isError {
				t.Errorf("list_notes returns %s", text)
			}
		})
	}
	all.Wait()
	if starts := strings.Count(h.read(".local/share/sluice/up.log"), " is up."); starts != 2 { // one by init
		t.Errorf("%d meshes were started:\n%s", starts, h.read(".local/share/sluice/up.log"))
	}
}

// The test measures the time from the start of the client's command, while no mesh is running, to the result of the
// client's first call. The time is not limited, because it depends on the machine. SLUICE_COLD_STARTS is the number of
// measurements.
func TestStdio_ColdStart(t *testing.T) {
	t.Parallel()
	n := 1
	if text, ok := os.LookupEnv("SLUICE_COLD_STARTS"); ok {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			t.Fatalf("SLUICE_COLD_STARTS is %q: %v", text, err)
		}
	}
	h := newOwnMesh(t)
	var took []time.Duration
	for range n {
		start := time.Now()
		s := h.connect(h.program, "stdio", "--server", "notes", "--as", "cursor")
		if text, isError := h.call(s, "list_notes", nil); isError {
			t.Fatalf("list_notes returns %s", text)
		}
		took = append(took, time.Since(start))
		m, found := h.mesh()
		if !found {
			t.Fatal("stdio started no mesh")
		}
		h.end(m, syscall.SIGTERM)
	}
	slices.Sort(took)
	t.Logf("%d cold starts: median %v, p95 %v, longest %v", n, took[n/2].Round(time.Millisecond), took[(n*95-1)/100].Round(time.Millisecond), took[n-1].Round(time.Millisecond))
}

// A client keeps its `sluice stdio` process for days. The mesh may be killed in the meantime, and the process then
// finds the next mesh.
func TestStdio_FindsAMeshAfterItWasKilled(t *testing.T) {
	t.Parallel()
	h := newOwnMesh(t)
	s := h.connect(h.program, "stdio", "--server", "notes", "--as", "cursor")
	first, _ := h.mesh()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		m, _ := h.mesh()
		h.end(m, signal)
		if text, isError := h.call(s, "list_notes", nil); isError || !strings.Contains(text, "Welcome") {
			t.Errorf("after %v, list_notes returns %s", signal, text)
		}
	}
	if m, found := h.mesh(); !found || m.PID == first.PID {
		t.Errorf("the mesh is %+v", m)
	}
}

// A killed mesh leaves its addresses behind in a file. If another program later listens on the mesh's port, that
// program receives no token.
func TestStdio_SendsNoTokenToAnotherProgram(t *testing.T) {
	t.Parallel()
	h := newOwnMesh(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			accepted <- struct{}{}
		}
	}()
	t.Cleanup(func() { _ = lis.Close() })
	h.write(".local/share/sluice/addresses.json", `{"mcp":"`+lis.Addr().String()+`","grpc":"`+lis.Addr().String()+`","pid":1}`)
	h.check(1, []string{"status"}, "the mesh is not running: is it up?")
	s := h.connect(h.program, "stdio", "--server", "notes", "--as", "cursor")
	if text, isError := h.call(s, "list_notes", nil); isError {
		t.Errorf("list_notes returns %s", text)
	}
	select {
	case <-accepted:
		t.Error("a program connected to the wrong port")
	default:
	}
}

func TestStdio_SaysWhyTheMeshDoesNotStart(t *testing.T) {
	t.Parallel()
	h := newOwnMesh(t)
	h.write(".config/sluice/sluice.yaml", h.read(".config/sluice/sluice.yaml")+"nonsense: true\n")
	cmd := exec.CommandContext(t.Context(), h.program, "stdio", "--server", "notes", "--as", "cursor")
	cmd.Dir, cmd.Env, cmd.Stdin = h.dir, h.env, strings.NewReader(stack.InitializeRequest+"\n")
	out, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), `"id":0,"error":{`) || strings.Count(string(out), "nonsense") < 2 { // on standard error, too
		t.Errorf("the client gets %s", out)
	}
}

func TestUpOnDemand_EndsWhenItIsIdle(t *testing.T) {
	t.Parallel()
	h := newOwnMesh(t)
	cmd := exec.CommandContext(t.Context(), h.program, "up", "--on-demand", "--idle", "200ms", "--config", filepath.Join(h.dir, ".config/sluice/sluice.yaml"))
	cmd.Dir, cmd.Env = h.dir, h.env
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "no client was connected for a while") {
		t.Errorf("%v: %s", err, out)
	}
	eventually.Holds(t, "the addresses are withdrawn", func() bool { _, found := h.mesh(); return !found })
}
