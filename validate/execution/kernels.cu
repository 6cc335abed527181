// Kernels for the layers that no library has in the form needed here. Single precision, images in the order NCHW.
//
// Every value is computed by one thread in one order, so that results are the same bit for bit on every run and do not
// depend on the device; there are no atomic additions. Two kinds of bodies: EACH(i, n) runs over n values, whatever the
// grid; a kernel with PHASEs works by blocks of BLOCK threads, which meet at the start of every phase. A compiler for
// another machine may define the macros itself: what is written with them is plain C.
#ifndef KERNEL
#define KERNEL(NAME, ...) extern "C" __global__ void NAME(__VA_ARGS__)
#define DEVICE static __device__
#define SHARED __shared__
#define EACH(I, N) \
  for (long I = blockIdx.x * (long)blockDim.x + threadIdx.x; I < (N); I += (long)gridDim.x * blockDim.x)
#define PHASE(T) for (int T = (__syncthreads(), (int)threadIdx.x), once_##T = 1; once_##T; once_##T = 0)
#endif
#define BLOCK 256
// Add the BLOCK numbers of `part` pairwise; the sum is part[0] in the next phase.
#define SUM(PART) \
  for (int step = BLOCK / 2; step; step /= 2) PHASE(t) if (t < step) PART[t] += PART[t + step]

// --- ReLU, copies, sums -----------------------------------------------------------------------------------------------
// y = max(y, 0); with signs, a byte a value: whether y is above 0.
KERNEL(relu_forward, float *y, unsigned char *signs, long n) {
  EACH(i, n) {
    y[i] = y[i] > 0 ? y[i] : 0;
    if (signs) signs[i] = y[i] > 0;
  }
}

KERNEL(relu_backward, const float *y, float *dy, long n) {
  EACH(i, n) if (!(y[i] > 0)) dy[i] = 0;
}

KERNEL(relu_backward_signs, const unsigned char *signs, float *dy, long n) {
  EACH(i, n) if (!signs[i]) dy[i] = 0;
}

// y = x, or y + x.
KERNEL(copy, const float *x, float *y, int adds, long n) {
  EACH(i, n) y[i] = adds ? y[i] + x[i] : x[i];
}

// Channels `from` on of x to channels `to` on of y, for `count` channels of `positions` values: y = x, or y + x.
KERNEL(copy_channels, const float *x, int x_channels, int from, float *y, int y_channels, int to, int count,
       int positions, int adds, long n) {
  EACH(i, n) {
    long image = i / ((long)count * positions), rest = i % ((long)count * positions);
    float value = x[(image * x_channels + from) * positions + rest];
    float *place = y + (image * y_channels + to) * positions + rest;
    *place = adds ? *place + value : value;
  }
}

// y[c] + b[c] at every position; b is one row for all images.
KERNEL(add_bias, const float *b, float *y, int channels, int positions, long n) {
  EACH(i, n) y[i] += b[i / positions % channels];
}

// y + x, where x has one value an image and channel.
KERNEL(add_planes, const float *x, float *y, int positions, long n) {
  EACH(i, n) y[i] += x[i / positions];
}

// The sum over images and positions of a channel (a block a channel): db = sum, or db + sum.
KERNEL(sum_channels, const float *dy, float *db, int images, int channels, int positions, int adds) {
  SHARED float part[BLOCK];
  int c = blockIdx.x;
  long count = (long)images * positions;
  PHASE(t) {
    part[t] = 0;
    for (long i = t; i < count; i += BLOCK) part[t] += dy[(i / positions * channels + c) * positions + i % positions];
  }
  SUM(part);
  PHASE(t) if (t == 0) db[c] = adds ? db[c] + part[0] : part[0];
}

// The sum over the positions of an image's channel (a block each): dx = sum, or dx + sum.
KERNEL(sum_planes, const float *dy, float *dx, int positions, int adds) {
  SHARED float part[BLOCK];
  PHASE(t) {
    part[t] = 0;
    for (int i = t; i < positions; i += BLOCK) part[t] += dy[(long)blockIdx.x * positions + i];
  }
  SUM(part);
  PHASE(t) if (t == 0) dx[blockIdx.x] = adds ? dx[blockIdx.x] + part[0] : part[0];
}

// --- pooling ----------------------------------------------------------------------------------------------------------
// Windows are cut at the border of the image; h, v count rows and columns of the output, i, j of the input.
struct Window { int top, bottom, left, right; };

DEVICE Window window_at(int h, int v, int height, int width, int kernel, int stride, int pad) {
  int top = h * stride - pad, left = v * stride - pad;
  Window w = {top < 0 ? 0 : top, top + kernel > height ? height : top + kernel, left < 0 ? 0 : left,
              left + kernel > width ? width : left + kernel};
  return w;
}

// The first row or column of windows that reaches i, and the number of rows or columns up to the last one.
DEVICE int first_window(int i, int kernel, int stride, int pad) {
  int reach = i + pad - kernel;
  return reach < 0 ? 0 : reach / stride + 1;
}
DEVICE int end_window(int i, int stride, int pad, int count) {
  int last = (i + pad) / stride + 1;
  return last < count ? last : count;
}

KERNEL(maxpool_forward, const float *x, float *y, int height, int width, int rows, int columns, int kernel, int stride,
       int pad, long n) {
  EACH(o, n) {
    const float *plane = x + o / ((long)rows * columns) * height * width;
    Window w = window_at(o / columns % rows, o % columns, height, width, kernel, stride, pad);
    float greatest = plane[w.top * width + w.left];
    for (int i = w.top; i < w.bottom; ++i)
      for (int j = w.left; j < w.right; ++j)
        if (!(plane[i * width + j] <= greatest)) greatest = plane[i * width + j];
    y[o] = greatest;
  }
}

// Each x collects from the windows in which it is the first that equals y.
KERNEL(maxpool_backward, const float *dy, const float *x, const float *y, float *dx, int height, int width, int rows,
       int columns, int kernel, int stride, int pad, int adds, long n) {
  EACH(o, n) {
    long image = o / ((long)height * width);
    int i = o / width % height, j = o % width;
    const float *plane = x + image * height * width;
    float sum = 0;
    for (int h = first_window(i, kernel, stride, pad); h < end_window(i, stride, pad, rows); ++h)
      for (int v = first_window(j, kernel, stride, pad); v < end_window(j, stride, pad, columns); ++v) {
        long at = (image * rows + h) * columns + v;
        if (plane[i * width + j] != y[at]) continue;
        Window w = window_at(h, v, height, width, kernel, stride, pad);
        int first = 1;
        for (int k = w.top; k <= i && first; ++k)
          for (int l = w.left; l < (k < i ? w.right : j) && first; ++l) first = plane[k * width + l] != y[at];
        if (first) sum += dy[at];
      }
    dx[o] = adds ? dx[o] + sum : sum;
  }
}

KERNEL(avgpool_forward, const float *x, float *y, int height, int width, int rows, int columns, int kernel, int stride,
       int pad, long n) {
  EACH(o, n) {
    const float *plane = x + o / ((long)rows * columns) * height * width;
    Window w = window_at(o / columns % rows, o % columns, height, width, kernel, stride, pad);
    float sum = 0;
    for (int i = w.top; i < w.bottom; ++i)
      for (int j = w.left; j < w.right; ++j) sum += plane[i * width + j];
    y[o] = sum / ((w.bottom - w.top) * (w.right - w.left));
  }
}

KERNEL(avgpool_backward, const float *dy, float *dx, int height, int width, int rows, int columns, int kernel,
       int stride, int pad, int adds, long n) {
  EACH(o, n) {
    long image = o / ((long)height * width);
    int i = o / width % height, j = o % width;
    float sum = 0;
    for (int h = first_window(i, kernel, stride, pad); h < end_window(i, stride, pad, rows); ++h)
      for (int v = first_window(j, kernel, stride, pad); v < end_window(j, stride, pad, columns); ++v) {
        Window w = window_at(h, v, height, width, kernel, stride, pad);
        sum += dy[(image * rows + h) * columns + v] / ((w.bottom - w.top) * (w.right - w.left));
      }
    dx[o] = adds ? dx[o] + sum : sum;
  }
}

// --- lowering, sample by sample as in Caffe ---------------------------------------------------------------------------
// One image as a matrix: a row for every channel and tap of the window, a column for every position of the output; 0 beyond
// the border. n = channels x positions.
KERNEL(im2col, const float *x, float *lowered, int height, int width, int rows, int columns, int kernel_h, int kernel_w,
       int stride, int pad, long n) {
  EACH(o, n) {
    long positions = (long)rows * columns, c = o / positions, p = o % positions;
    int top = p / columns * stride - pad, left = p % columns * stride - pad;
    const float *plane = x + c * height * width;
    float *to = lowered + c * kernel_h * kernel_w * positions + p;
    for (int i = top; i < top + kernel_h; ++i)
      for (int j = left; j < left + kernel_w; ++j, to += positions)
        *to = i >= 0 && i < height && j >= 0 && j < width ? plane[i * width + j] : 0;
  }
}

// The transpose: each x collects from the windows that hold it. n = channels x height x width.
KERNEL(col2im, const float *lowered, float *dx, int height, int width, int rows, int columns, int kernel_h, int kernel_w,
       int stride, int pad, long n) {
  EACH(o, n) {
    int j = o % width, i = o / width % height;
    long positions = (long)rows * columns;
    const float *from = lowered + o / ((long)height * width) * kernel_h * kernel_w * positions;
    float sum = 0;
    for (int h = first_window(i, kernel_h, stride, pad); h < end_window(i, stride, pad, rows); ++h)
      for (int v = first_window(j, kernel_w, stride, pad); v < end_window(j, stride, pad, columns); ++v) {
        int tap = (i + pad - h * stride) * kernel_w + (j + pad - v * stride);
        sum += from[tap * positions + (long)h * columns + v];
      }
    dx[o] = sum;
  }
}

// sum = the first of `count` arrays of n values, plus the second, and so on; they begin `stride` values apart.
KERNEL(sum_parts, const float *parts, float *sum, int count, long stride, long n) {
  EACH(i, n) {
    float total = parts[i];
    for (int k = 1; k < count; ++k) total += parts[k * stride + i];
    sum[i] = total;
  }
}

// --- normalisation ----------------------------------------------------------------------------------------------------
// k + alpha / size * (sum of x^2 over the `size` channels around c).
DEVICE float lrn_scale(const float *x, int c, int channels, int positions, int size, float alpha, float k) {
  float sum = 0;
  int begin = c - size / 2, end = begin + size;
  for (int d = begin < 0 ? 0 : begin; d < (end < channels ? end : channels); ++d) {
    float value = x[(long)d * positions];
    sum += value * value;
  }
  return k + alpha / size * sum;
}

KERNEL(lrn_forward, const float *x, float *y, int channels, int positions, int size, float alpha, float beta, float k,
       long n) {
  EACH(o, n) {
    int c = o / positions % channels;
    const float *column = x + (o - (long)c * positions);
    y[o] = x[o] * powf(lrn_scale(column, c, channels, positions, size, alpha, k), -beta);
  }
}

// dx[c] = dy[c] / scale[c]^beta - 2 alpha beta / size x[c] sum over d near c of dy[d] y[d] / scale[d].
KERNEL(lrn_backward, const float *dy, const float *x, const float *y, float *dx, int channels, int positions, int size,
       float alpha, float beta, float k, int adds, long n) {
  EACH(o, n) {
    int c = o / positions % channels;
    long base = o - (long)c * positions;
    float sum = 0;
    int begin = c + size / 2 - size + 1, end = c + size / 2 + 1;
    for (int d = begin < 0 ? 0 : begin; d < (end < channels ? end : channels); ++d) {
      long at = base + (long)d * positions;
      sum += dy[at] * y[at] / lrn_scale(x + base, d, channels, positions, size, alpha, k);
    }
    float scale = lrn_scale(x + base, c, channels, positions, size, alpha, k);
    float value = dy[o] * powf(scale, -beta) - 2 * alpha * beta / size * x[o] * sum;
    dx[o] = adds ? dx[o] + value : value;
  }
}

// A block a channel. saved: the means, then one over the standard deviations.
KERNEL(bn_forward, const float *x, const float *w, float *y, float *saved, int images, int channels, int positions,
       float epsilon) {
  SHARED float part[BLOCK];
  SHARED float mean, scale;
  int c = blockIdx.x;
  long count = (long)images * positions;
  PHASE(t) {
    part[t] = 0;
    for (long i = t; i < count; i += BLOCK) part[t] += x[(i / positions * channels + c) * positions + i % positions];
  }
  SUM(part);
  PHASE(t) if (t == 0) mean = part[0] / count;
  PHASE(t) {
    part[t] = 0;
    for (long i = t; i < count; i += BLOCK) {
      float off = x[(i / positions * channels + c) * positions + i % positions] - mean;
      part[t] += off * off;
    }
  }
  SUM(part);
  PHASE(t) if (t == 0) {
    scale = 1 / sqrtf(part[0] / count + epsilon);
    saved[c] = mean;
    saved[channels + c] = scale;
  }
  PHASE(t) {
    for (long i = t; i < count; i += BLOCK) {
      long at = (i / positions * channels + c) * positions + i % positions;
      y[at] = w[c] * (x[at] - mean) * scale + w[channels + c];
    }
  }
}

// A block a channel; dw: of the scales, then of the shifts. dx may be null: then the weights' gradient alone.
KERNEL(bn_backward, const float *dy, const float *x, const float *saved, const float *w, float *dx, float *dw,
       int images, int channels, int positions, int adds, int dw_adds) {
  SHARED float shift[BLOCK], factor[BLOCK];
  int c = blockIdx.x;
  long count = (long)images * positions;
  float mean = saved[c], scale = saved[channels + c];
  PHASE(t) {
    shift[t] = factor[t] = 0;
    for (long i = t; i < count; i += BLOCK) {
      long at = (i / positions * channels + c) * positions + i % positions;
      shift[t] += dy[at];
      factor[t] += dy[at] * (x[at] - mean) * scale;
    }
  }
  SUM(shift);
  SUM(factor);
  PHASE(t) if (t == 0) {
    dw[c] = dw_adds ? dw[c] + factor[0] : factor[0];
    dw[channels + c] = dw_adds ? dw[channels + c] + shift[0] : shift[0];
  }
  PHASE(t) {
    if (dx)
      for (long i = t; i < count; i += BLOCK) {
        long at = (i / positions * channels + c) * positions + i % positions;
        float value = w[c] * scale * (dy[at] - (shift[0] + (x[at] - mean) * scale * factor[0]) / count);
        dx[at] = adds ? dx[at] + value : value;
      }
  }
}

// Layer norm, a thread a position: over the channels. saved: of each image the means, then one over the deviations.
KERNEL(norm_forward, const float *x, const float *w, float *y, float *saved, int channels, int positions, float epsilon,
       long n) {
  EACH(i, n) {
    long image = i / positions, p = i % positions;
    const float *from = x + image * channels * positions + p;
    float *to = y + image * channels * positions + p;
    float sum = 0, squares = 0;
    for (long c = 0; c < channels; ++c) sum += from[c * positions];
    float mean = sum / channels;
    for (long c = 0; c < channels; ++c) squares += (from[c * positions] - mean) * (from[c * positions] - mean);
    float scale = 1 / sqrtf(squares / channels + epsilon);
    for (long c = 0; c < channels; ++c) to[c * positions] = w[c] * (from[c * positions] - mean) * scale + w[channels + c];
    saved[image * 2 * positions + p] = mean;
    saved[(image * 2 + 1) * positions + p] = scale;
  }
}

KERNEL(norm_backward, const float *dy, const float *x, const float *saved, const float *w, float *dx, int channels,
       int positions, int adds, long n) {
  EACH(i, n) {
    long image = i / positions, p = i % positions, begin = image * channels * positions + p;
    float mean = saved[image * 2 * positions + p], scale = saved[(image * 2 + 1) * positions + p];
    float sum = 0, along = 0;
    for (long c = 0; c < channels; ++c) {
      long at = begin + c * positions;
      sum += w[c] * dy[at];
      along += w[c] * dy[at] * (x[at] - mean) * scale;
    }
    for (long c = 0; c < channels; ++c) {
      long at = begin + c * positions;
      float value = scale * (w[c] * dy[at] - (sum + (x[at] - mean) * scale * along) / channels);
      dx[at] = adds ? dx[at] + value : value;
    }
  }
}

// A block a channel; dw: of the scales, then of the shifts.
KERNEL(norm_weights, const float *dy, const float *x, const float *saved, float *dw, int images, int channels,
       int positions, int adds) {
  SHARED float shift[BLOCK], factor[BLOCK];
  int c = blockIdx.x;
  long count = (long)images * positions;
  PHASE(t) {
    shift[t] = factor[t] = 0;
    for (long i = t; i < count; i += BLOCK) {
      long image = i / positions, p = i % positions, at = (image * channels + c) * positions + p;
      shift[t] += dy[at];
      factor[t] += dy[at] * (x[at] - saved[image * 2 * positions + p]) * saved[(image * 2 + 1) * positions + p];
    }
  }
  SUM(shift);
  SUM(factor);
  PHASE(t) if (t == 0) {
    dw[c] = adds ? dw[c] + factor[0] : factor[0];
    dw[channels + c] = adds ? dw[channels + c] + shift[0] : shift[0];
  }
}

// --- a factor a channel, GELU -----------------------------------------------------------------------------------------
// y = w[c] x, or y + that: also the gradient of x from that of y.
KERNEL(scale, const float *x, const float *w, float *y, int channels, int positions, int adds, long n) {
  EACH(i, n) {
    float value = w[i / positions % channels] * x[i];
    y[i] = adds ? y[i] + value : value;
  }
}

// The sum of x dy over images and positions of a channel (a block a channel): dw = sum, or dw + sum.
KERNEL(scale_weights, const float *dy, const float *x, float *dw, int images, int channels, int positions, int adds) {
  SHARED float part[BLOCK];
  int c = blockIdx.x;
  long count = (long)images * positions;
  PHASE(t) {
    part[t] = 0;
    for (long i = t; i < count; i += BLOCK) {
      long at = (i / positions * channels + c) * positions + i % positions;
      part[t] += x[at] * dy[at];
    }
  }
  SUM(part);
  PHASE(t) if (t == 0) dw[c] = adds ? dw[c] + part[0] : part[0];
}

// tanh(sqrt(2 / pi) (x + 0.044715 x^3)): Hendrycks and Gimpel 2016.
DEVICE float gelu_bend(float x) { return tanhf(0.7978845608f * (x + 0.044715f * x * x * x)); }

KERNEL(gelu_forward, const float *x, float *y, long n) {
  EACH(i, n) y[i] = 0.5f * x[i] * (1 + gelu_bend(x[i]));
}

KERNEL(gelu_backward, const float *dy, const float *x, float *dx, int adds, long n) {
  EACH(i, n) {
    float bend = gelu_bend(x[i]), slope = 0.7978845608f * (1 + 3 * 0.044715f * x[i] * x[i]) * (1 - bend * bend);
    float value = dy[i] * 0.5f * (1 + bend + x[i] * slope);
    dx[i] = adds ? dx[i] + value : value;
  }
}

// --- dropout and losses ------------------------------------------------------------------------------------------------
// Whether value `index` of the batch is kept: a bit of a hash (the finaliser of MurmurHash3, Appleby 2011).
DEVICE unsigned char is_kept(unsigned index, unsigned key) {
  unsigned h = index * 0x9E3779B9u + key;
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  h ^= h >> 16;
  return h >> 31;
}

// `first`: index in the batch of the first value of x. x and y may be the same.
KERNEL(dropout_forward, const float *x, float *y, unsigned char *mask, long first, unsigned key, long n) {
  EACH(i, n) {
    mask[i] = is_kept((unsigned)(first + i), key);
    y[i] = mask[i] ? 2 * x[i] : 0;
  }
}

KERNEL(dropout_backward, const float *dy, const unsigned char *mask, float *dx, int adds, long n) {
  EACH(i, n) {
    float value = mask[i] ? 2 * dy[i] : 0;
    dx[i] = adds ? dx[i] + value : value;
  }
}

// A block an image: probabilities over the channels at each position, and the mean of -log at the labels. `labels` and
// `losses` are those of the round's first image.
KERNEL(softmax_forward, const float *x, const int *labels, float *y, float *losses, int channels, int positions) {
  SHARED float part[BLOCK];
  long image = blockIdx.x;
  PHASE(t) {
    part[t] = 0;
    for (int p = t; p < positions; p += BLOCK) {
      const float *from = x + image * channels * positions + p;
      float *to = y + image * channels * positions + p;
      float greatest = from[0], sum = 0;
      for (long c = 1; c < channels; ++c) greatest = from[c * positions] > greatest ? from[c * positions] : greatest;
      for (long c = 0; c < channels; ++c) sum += expf(from[c * positions] - greatest);
      for (long c = 0; c < channels; ++c) to[c * positions] = expf(from[c * positions] - greatest) / sum;
      long label = labels[image * positions + p];
      part[t] += logf(sum) - (from[label * positions] - greatest);
    }
  }
  SUM(part);
  PHASE(t) if (t == 0) losses[image] = part[0] / positions;
}

// dx = (y - 1 at the label) / total.
KERNEL(softmax_backward, const float *y, const int *labels, float *dx, int channels, int positions, float total, int adds,
       long n) {
  EACH(i, n) {
    long image = i / ((long)channels * positions);
    int c = i / positions % channels;
    float value = (y[i] - (labels[image * positions + i % positions] == c)) / total;
    dx[i] = adds ? dx[i] + value : value;
  }
}

// Contrastive loss (Hadsell et al. 2006), a block an image: d^2 / 2 at label 1, max(1 - d, 0)^2 / 2 at 0.
KERNEL(contrast_forward, const float *x0, const float *x1, const int *labels, float *y, float *losses, int values) {
  SHARED float part[BLOCK];
  long image = blockIdx.x, begin = image * values;
  PHASE(t) {
    part[t] = 0;
    for (int i = t; i < values; i += BLOCK) part[t] += (x0[begin + i] - x1[begin + i]) * (x0[begin + i] - x1[begin + i]);
  }
  SUM(part);
  PHASE(t) if (t == 0) {
    float distance = sqrtf(part[0]), far = distance < 1 ? 1 - distance : 0;
    y[image] = losses[image] = labels[image] == 1 ? part[0] / 2 : far * far / 2;
  }
}

// dx0 or dx1 (`sign` 1 or -1), a block an image; `total`: images of the batch.
KERNEL(contrast_backward, const float *x0, const float *x1, const int *labels, float *dx, int values, float total,
       float sign, int adds) {
  SHARED float part[BLOCK];
  long begin = (long)blockIdx.x * values;
  PHASE(t) {
    part[t] = 0;
    for (int i = t; i < values; i += BLOCK) part[t] += (x0[begin + i] - x1[begin + i]) * (x0[begin + i] - x1[begin + i]);
  }
  SUM(part);
  PHASE(t) {
    float distance = sqrtf(part[0]), far = distance < 1 && distance > 0 ? -(1 - distance) / distance : 0;
    float factor = sign * (labels[blockIdx.x] == 1 ? 1 : far) / total;
    for (int i = t; i < values; i += BLOCK) {
      float value = factor * (x0[begin + i] - x1[begin + i]);
      dx[begin + i] = adds ? dx[begin + i] + value : value;
    }
  }
}

// --- resampling -------------------------------------------------------------------------------------------------------
// mode 0, crop: y[h, v] = x[h + a, v + b]; 1, repeat: x[h / a, v / b]; 2, subsample: x[a h, b v], 0 in channels beyond x's.
KERNEL(resample_forward, const float *x, float *y, int x_channels, int height, int width, int channels, int rows,
       int columns, int mode, int a, int b, long n) {
  EACH(o, n) {
    int v = o % columns, h = o / columns % rows;
    long plane = o / ((long)rows * columns);
    int c = plane % channels;
    int i = mode == 0 ? h + a : mode == 1 ? h / a : h * a, j = mode == 0 ? v + b : mode == 1 ? v / b : v * b;
    y[o] = c < x_channels ? x[((plane / channels * x_channels + c) * height + i) * width + j] : 0;
  }
}

// The transpose: each x collects from where it went.
KERNEL(resample_backward, const float *dy, float *dx, int x_channels, int height, int width, int channels, int rows,
       int columns, int mode, int a, int b, int adds, long n) {
  EACH(o, n) {
    int j = o % width, i = o / width % height;
    long plane = o / ((long)height * width);
    const float *from = dy + (plane / x_channels * channels + plane % x_channels) * rows * columns;
    float sum = 0;
    if (mode == 0) {
      if (i >= a && i - a < rows && j >= b && j - b < columns) sum = from[(i - a) * columns + j - b];
    } else if (mode == 1) {
      for (int h = i * a; h < (i + 1) * a; ++h)
        for (int v = j * b; v < (j + 1) * b; ++v) sum += from[h * columns + v];
    } else if (i % a == 0 && j % b == 0 && i / a < rows && j / b < columns) {
      sum = from[i / a * columns + j / b];
    }
    dx[o] = adds ? dx[o] + sum : sum;
  }
}
