package approvals_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// recipe matches the file and the command of each recipe in docs/approvals.md.
var recipe = regexp.MustCompile("(?s)```\n# ~/(\\.config/sluice/\\w+\\.curl)\n(.*?)```\n\n```\n(sluice approvals watch --exec .*?)```")

type received struct{ method, path, body string }

// The recipes for ntfy and Telegram in docs/approvals.md work as they are written. In the test, an HTTP server on this
// machine stands in for both services.
func TestRecipes_NotifyPhones(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("install curl to run this test")
	}
	requests := make(chan received, 10)
	phone := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests <- received{r.Method, r.URL.Path, string(body)}
		_, _ = w.Write([]byte(`{"ok":true}`))
	}))
	t.Cleanup(phone.Close)
	f, _ := startRulesMesh(t, "")
	f.Connect(t).Call("send", `{"to":"ana"}`)
	id := f.AwaitOnePending(t)
	home := t.TempDir()
	found := recipe.FindAllStringSubmatch(stack.ReadFile(t, "../../../docs/approvals.md"), -1)
	for i, want := range []received{
		{method: "POST", path: "/YOUR-SECRET-TOPIC", body: "Waiting: 1. See sluice approvals show " + id},
		{method: "POST", path: "/botTOKEN/sendMessage", body: "chat_id=CHAT&text=Waiting%3A+1.+See+sluice+approvals+show+" + id},
	} {
		if len(found) != 2 {
			t.Fatalf("the page has %d recipes", len(found))
		}
		file, content, command := found[i][1], found[i][2], found[i][3]
		if err := os.MkdirAll(filepath.Join(home, filepath.Dir(file)), 0o700); err != nil {
			t.Fatal(err)
		}
		stack.WriteFile(t, filepath.Join(home, file), regexp.MustCompile(`https://[a-z.]+`).ReplaceAllString(content, phone.URL))
		stop := runRecipe(t, home, f.GRPC, command)
		select {
		case got := <-requests:
			got.body = strings.ReplaceAll(got.body, "%20", "+") // depends on the version of curl
			if got != want {
				t.Errorf("%s sent %+v, want %+v", file, got, want)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s sent nothing", file)
		}
		if printed := stop(); printed != "" {
			t.Errorf("%s printed on standard error: %s", file, printed)
		}
	}
}

// runRecipe starts a command line from docs/approvals.md. The function stop interrupts the command and returns its
// standard error.
func runRecipe(t *testing.T, home, grpc, command string) (stop func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(stack.Program(t, "sluice"))+":"+os.Getenv("PATH"), "HOME="+home, "XDG_CONFIG_HOME=", "SLUICE_TOKEN="+stack.OperatorToken, "SLUICE_ADDR="+grpc)
	cmd.Dir, cmd.Stderr = home, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() string {
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // the test checks standard error
		return stderr.String()
	}
}
