package objects_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/objects"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"} {
		_ = os.Setenv(name, value) // the fake object store accepts any values
	}
	os.Exit(m.Run())
}

// startS3 starts a fake object store that has the bucket "states", and returns the bucket's URL.
func startS3(t *testing.T) string {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("states"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	return server.URL
}

func eachBucket(t *testing.T, test func(t *testing.T, b objects.Bucket)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) (objects.Bucket, error){
		"folder": func(t *testing.T) (objects.Bucket, error) {
			return objects.OpenFolder(filepath.Join(t.TempDir(), "new"), true)
		},
		"S3": func(t *testing.T) (objects.Bucket, error) {
			return objects.OpenS3("s3://states?region=us-east-1&use_path_style=true&endpoint=" + startS3(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := open(t)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
			test(t, b)
		})
	}
}

func keys(t *testing.T, b objects.Bucket, first string) (out []string) {
	t.Helper()
	for object, err := range b.List(t.Context(), first) {
		if err != nil {
			t.Fatal(err)
		}
		if age := time.Since(object.Modified); age < -time.Minute || age > time.Hour {
			t.Errorf("%s was written at %v", object.Key, object.Modified)
		}
		out = append(out, object.Key)
	}
	slices.Sort(out)
	return out
}

func read(t *testing.T, b objects.Bucket, key string) ([]byte, error) {
	t.Helper()
	r, err := b.Read(t.Context(), key)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func TestBucket_WriteReadListDelete(t *testing.T) {
	t.Parallel()
	eachBucket(t, func(t *testing.T, b objects.Bucket) {
		if got := keys(t, b, "a"); len(got) != 0 {
			t.Errorf("a new bucket has %q", got)
		}
		large := bytes.Repeat([]byte("0123456789abcdef"), 5<<18) // larger than one part of a multipart upload
		for key, data := range map[string][]byte{"a/1": large, "a/2": {}, "ab/1": []byte("x")} {
			if err := b.Write(t.Context(), key, data); err != nil {
				t.Fatalf("%s of %d bytes: %v", key, len(data), err)
			}
			if got, err := read(t, b, key); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s has %d bytes, want %d: %v", key, len(got), len(data), err)
			}
		}
		if err := b.Write(t.Context(), "a/1", []byte("other")); err != nil {
			t.Fatal(err)
		}
		if got, err := read(t, b, "a/1"); err != nil || string(got) != "other" {
			t.Errorf("after a second write the object is %q: %v", got, err)
		}
		if got := strings.Join(keys(t, b, "a"), " "); got != "a/1 a/2" {
			t.Errorf("the keys that begin with a are %s", got)
		}
		for range 2 { // deleting a missing object is not an error
			for _, key := range []string{"a/1", "a/2"} {
				if err := b.Delete(t.Context(), key); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
		for _, key := range []string{"a/1", "none/1"} {
			if _, err := read(t, b, key); !errors.Is(err, objects.ErrNotFound) {
				t.Errorf("%s, which is missing: %v", key, err)
			}
		}
		if got := strings.Join(append(keys(t, b, "a"), keys(t, b, "ab")...), " "); got != "ab/1" {
			t.Errorf("the remaining keys are %s", got)
		}
	})
}

func TestBucket_ConcurrentUse(t *testing.T) {
	t.Parallel()
	eachBucket(t, func(t *testing.T, b objects.Bucket) {
		var all sync.WaitGroup
		for _, name := range []string{"1", "2", "3", "4"} {
			all.Go(func() {
				for range 25 {
					err := b.Write(t.Context(), "a/"+name, []byte(name))
					got, readErr := read(t, b, "a/"+name)
					if err = errors.Join(err, readErr, b.Delete(t.Context(), "a/"+name)); err != nil || string(got) != name {
						t.Errorf("%s is %q: %v", name, got, err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

func TestFolder_StaysWithinItsFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := objects.OpenFolder(filepath.Join(dir, "states"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, key := range []string{"../secret", "../other", "one", "a/.writing-1"} {
		if err := b.Write(t.Context(), key, []byte("y")); err == nil {
			t.Errorf("%s is written", key)
		}
	}
	if _, err := read(t, b, "../secret"); err == nil {
		t.Error("a file outside of the folder is read")
	}
	if err := b.Delete(t.Context(), "../secret"); err == nil {
		t.Error("a file outside of the folder is deleted")
	}
	if got, err := os.ReadFile(filepath.Join(dir, "secret")); string(got) != "x" {
		t.Errorf("the file outside of the folder is %q: %v", got, err)
	}
	if err := b.Write(t.Context(), "a/1", []byte("y")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{"states": 0o700, "states/a": 0o700, "states/a/1": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

func TestOpen_ChecksURLs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for url, want := range map[string]string{
		"s3://agents?region=eu-central-1":                                      "",
		"s3://agents?region=r&endpoint=https://minio.example&use_path_style=1": "",
		"s3://agents?endpoint=minio.example":                                   "endpoint",
		"s3://agents?endpoint=ftp://minio.example":                             "endpoint",
		"s3://agents?use_path_style=maybe":                                     "use_path_style",
		"s3://agents?profile=x":                                                `"profile"`,
		"s3://agents/folder":                                                   "form",
		"s3:agents":                                                            "form",
		"gs://agents":                                                          "form",
		"s3://%zz":                                                             "URL",
		"file://" + dir + "/missing":                                           "no such file",
		"file://" + dir + "/made?create_dir=true":                              "",
		"file://" + dir:                                                        "",
		"s3://agents?endpoint=https://minio.example/path":                      "endpoint",
		"s3://agents?endpoint=https://k:secret@minio.example":                  "endpoint",
		"s3://k:secret@agents":                                                 "form",
		"file://host/states":                                                   "form",
		"file://":                                                              "form",
		"file://" + dir + "?metadata=skip&no_tmp_dir=true":                     "",
		"file:///states?base_url=x":                                            `"base_url"`,
	} {
		b, err := objects.Open(url)
		if err == nil != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		if err == nil {
			_ = b.Close()
		}
	}
}

// If the object store or the bucket does not exist, the error is not ErrNotFound.
func TestS3_FailuresAreNotMissingObjects(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, url := range map[string]string{
		"no bucket": "s3://others?region=us-east-1&use_path_style=true&endpoint=" + startS3(t),
		"no store":  "s3://states?region=us-east-1&use_path_style=true&endpoint=http://127.0.0.1:1",
	} {
		b, err := objects.OpenS3(url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(ctx, "a/1"); err == nil || errors.Is(err, objects.ErrNotFound) {
			t.Errorf("%s: the read returns %v", name, err)
		}
		if err := b.Write(ctx, "a/1", []byte("x")); err == nil {
			t.Errorf("%s: the object is written", name)
		}
		for _, err := range b.List(ctx, "a") {
			if err == nil {
				t.Errorf("%s: the objects are listed", name)
			}
		}
	}
}

// Without credentials, no request is sent. The error names the environment variables to set.
func TestS3_SendsNothingWithoutCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "missing"))
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x")
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", filepath.Join(t.TempDir(), "unreadable"))
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(server.Close)
	b, err := objects.OpenS3("s3://states?region=us-east-1&use_path_style=true&endpoint=" + server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(t.Context(), "a/1"); err == nil || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") || !strings.Contains(err.Error(), "unreadable") {
		t.Errorf("the read returns %v", err)
	}
	if err := b.Write(t.Context(), "a/1", []byte("x")); err == nil || asked.Load() != 0 {
		t.Errorf("the write returns %v, and %d requests were sent", err, asked.Load())
	}
}

// If an environment variable sets an endpoint, but the URL of the bucket does not, OpenS3 returns an error that names
// the variable, because the endpoint in the variable would have no effect.
func TestOpenS3_RefusesEndpointOfEnvironment(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL_S3", "https://minio.example")
	if _, err := objects.OpenS3("s3://states"); err == nil || !strings.Contains(err.Error(), "AWS_ENDPOINT_URL_S3") {
		t.Errorf("opening the bucket returns %v", err)
	}
	if _, err := objects.OpenS3("s3://states?endpoint=https://other.example"); err != nil {
		t.Error(err)
	}
}
