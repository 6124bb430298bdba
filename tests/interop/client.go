// A ttrpc client that shares no line with Ballast: containerd's Go package. Calls stand on stdin, one a line,
// "SERVICE METHOD HEX" of a packed request; answers on stdout, "ok HEX" or "error CODE TEXT", in order. All go over
// one connection; a line "together N" before a call makes N of it at once.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
)

// packed is a message whose bytes are its own affair.
type packed struct{ bytes []byte }

func (m *packed) Reset()                       { m.bytes = nil }
func (m *packed) String() string               { return hex.EncodeToString(m.bytes) }
func (m *packed) ProtoMessage()                {}
func (m *packed) Marshal() ([]byte, error)     { return m.bytes, nil }
func (m *packed) Unmarshal(bytes []byte) error { m.bytes = append([]byte(nil), bytes...); return nil }

func call(client *ttrpc.Client, service, method, request string) string {
	bytes, err := hex.DecodeString(request)
	if err != nil {
		return "error 3 request is no hex"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var answer packed
	if err := client.Call(ctx, service, method, &packed{bytes}, &answer); err != nil {
		if s, ok := status.FromError(err); ok {
			return fmt.Sprintf("error %d %s", s.Code(), s.Message())
		}
		return fmt.Sprintf("error 14 %v", err)
	}
	return "ok " + hex.EncodeToString(answer.bytes)
}

func main() {
	connection, err := net.Dial("unix", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	client := ttrpc.NewClient(connection)
	defer client.Close()
	together := 1
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		var service, method, request string
		if n, _ := fmt.Sscanf(lines.Text(), "together %d", &together); n == 1 {
			continue
		}
		fmt.Sscan(lines.Text(), &service, &method, &request)
		answers := make([]string, together)
		var all sync.WaitGroup
		for i := range answers {
			all.Add(1)
			go func(i int) { defer all.Done(); answers[i] = call(client, service, method, request) }(i)
		}
		all.Wait()
		for _, answer := range answers {
			fmt.Println(answer)
		}
		together = 1
	}
}
