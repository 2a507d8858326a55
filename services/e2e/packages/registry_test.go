package packages_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// registry is a fake npm registry that counts the requests for each archive.
type registry struct {
	url string

	mu sync.Mutex
	// packages contains the manifests by package name and version. tarballs contains the archives by path.
	packages map[string]map[string]map[string]any
	latest   map[string]string
	tarballs map[string][]byte
	// fetched counts the requests for each tarball, by path.
	fetched map[string]int
	// requested receives the path of each requested archive. The archive is sent only after the channel released is
	// closed. If requested is nil, archives are sent at once.
	requested chan string
	released  chan struct{}
	// unavailable makes the registry respond to every request with an error.
	unavailable bool
}

func startRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{
		packages: make(map[string]map[string]map[string]any), latest: make(map[string]string), tarballs: make(map[string][]byte), fetched: make(map[string]int),
	}
	s := httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

// publish adds a version of a package and makes it the latest version. The package's files are executable.
func (r *registry) publish(t *testing.T, name, version string, manifest map[string]any, files map[string]string) {
	t.Helper()
	manifest = maps.Clone(manifest)
	manifest["name"], manifest["version"] = name, version
	raw, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	files = maps.Clone(files)
	files["package.json"] = string(raw)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: "package/" + path, Mode: 0o755, Size: int64(len(files[path]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[path])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(packed.Bytes())
	path := fmt.Sprintf("/%s/-/%s-%s.tgz", name, name[strings.Index(name, "/")+1:], version)
	manifest["dist"] = map[string]any{"tarball": r.url + path, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	if manifest["scripts"] != nil {
		manifest["hasInstallScript"] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.packages[name] == nil {
		r.packages[name] = make(map[string]map[string]any)
	}
	r.packages[name][version], r.latest[name], r.tarballs[path] = manifest, version, packed.Bytes()
}

func (r *registry) serve(w http.ResponseWriter, req *http.Request) {
	path, err := url.PathUnescape(req.URL.EscapedPath())
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	tarball, asked, goOn, away := r.tarballs[path], r.requested, r.released, r.unavailable
	versions := r.packages[strings.TrimPrefix(path, "/")]
	answer, _ := json.Marshal(map[string]any{"name": strings.TrimPrefix(path, "/"), "dist-tags": map[string]string{"latest": r.latest[strings.TrimPrefix(path, "/")]}, "versions": versions})
	if tarball != nil {
		r.fetched[path]++
	}
	r.mu.Unlock()
	switch {
	case away:
		w.WriteHeader(http.StatusForbidden) // a status that npm does not retry
	case tarball != nil:
		if asked != nil {
			asked <- path
			select {
			case <-goOn:
			case <-req.Context().Done():
			}
		}
		_, _ = w.Write(tarball)
	case versions != nil:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// downloadCount returns the number of times that a package version was fetched.
func (r *registry) downloadCount(name, version string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, times := range r.fetched {
		if strings.HasPrefix(path, "/"+name+"/-/") && strings.HasSuffix(path, "-"+version+".tgz") {
			n += times
		}
	}
	return n
}

// holdDownloads delays all archives until the function release is called. The channel asked receives the path of each
// delayed archive.
func (r *registry) holdDownloads() (asked <-chan string, release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requested, r.released = make(chan string, 100), make(chan struct{})
	goOn := r.released
	return r.requested, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.requested = nil
		close(goOn)
	}
}

func (r *registry) setUnavailable(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unavailable = away
}

// tarball returns the archive of a package version.
func (r *registry) tarball(t *testing.T, name, version string) []byte {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, archive := range r.tarballs {
		if strings.HasPrefix(path, "/"+name+"/-/") && strings.HasSuffix(path, "-"+version+".tgz") {
			return archive
		}
	}
	t.Fatalf("%s %s is not published", name, version)
	return nil
}
