"""The vectors' equations, under the names of a file's tensors and settings, and whose they are.

d = j - i, key position - query position.
"""

PLAIN = "S_ij = scale * q_i . k_j;  O_i = sum_j softmax(S)_ij v_j"
RELATIVE = "S_ij = scale * (q_i . k_j + q_i . RK[d]);  O_i = sum_j softmax(S)_ij v_j;  RK = relative_keys"
CLIP = "c = max(-left, min(d, right)), (left, right) = max_distance;  RK = relative_keys"
SHAW_KEYS = "S_ij = scale * q_i . (k_j + RK[c]);  O_i = sum_j softmax(S)_ij v_j;  " + CLIP
SHAW_BOTH = (
    "S_ij = scale * q_i . (k_j + RK[c]);  O_i = sum_j softmax(S)_ij (v_j + RV[c]);  " + CLIP + ", RV = relative_values"
)
XL = "S_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j]);  O_i = sum_j softmax(S)_ij v_j"
SINES_FIRST = ";  R[p] = (sin(p f_0), ..., sin(p f_n), cos(p f_0), ..., cos(p f_n)), f_t = 10000^(-2 t / E)"
SIDE_BY_SIDE = ";  R[p] = (sin(p f_0), cos(p f_0), sin(p f_1), cos(p f_1), ...), f_t = 10000^(-2 t / E)"
BUCKETS = (
    "bucket(d): p = |d|, n = num_buckets / 2, and n is added where d > 0; not bidirectional: p = max(-d, 0), "
    "n = num_buckets; m = n / 2; p below m, else min(n - 1, m + floor(log(p / m) / log(max_distance / m) (n - m)))"
)
T5 = "S_ij = scale * q_i . k_j + bias[bucket(d), h];  O_i = sum_j softmax(S)_ij v_j;  " + BUCKETS
ALIBI = (
    "S_ij = scale * q_i . k_j - slope_h |d|;  O_i = sum_j softmax(S)_ij v_j;  slope_h = 2^(-8 h / n), h = 1 .. n, for "
    "n heads, a power of two; else those of the power below n, then the first, third, ... of twice that power"
)
ALIBI_SIGNED = ALIBI.replace("- slope_h |d|", "+ slope_h d")
KERPLE_LOG = "S_ij = scale * q_i . k_j - r1_h log(1 + r2_h |d|);  O_i = sum_j softmax(S)_ij v_j"
KERPLE_POWER = "S_ij = scale * q_i . k_j - r1_h |d|^(r2_h);  O_i = sum_j softmax(S)_ij v_j"
SANDWICH = (
    "S_ij = scale * q_i . k_j + n / (8 h) * sum_t cos(d * 10000^(-2 t / width));  O_i = sum_j softmax(S)_ij v_j;  "
    "t = 0 .. width / 2 - 1, h = 1 .. n, for n heads"
)
GRID_BIAS = (
    "S_ij = scale * q_i . k_j + bias[row(dy, dx), h];  O_i = sum_j softmax(S)_ij v_j;  dy and dx: as d, of the "
    "positions on the axes y and x"
)
CLASS_TOKEN = "; a position of null is that of a class token, which stands nowhere and has rows of its own"
GRID_EMBEDDING = (
    "S_ij = scale * (q_i . k_j + q_i . RK[row(dy, dx)]);  O_i = sum_j softmax(S)_ij v_j;  RK = relative_keys;  "
    "dy and dx: as d, of the positions on the axes y and x"
)
LOG_GRID = (
    "S_ij = scale * q_i . k_j + 16 sigmoid(W2 relu(W1 (f(dy), f(dx)) + b1))_h;  O_i = sum_j softmax(S)_ij v_j;  "
    "f(d) = sign(u) log2(1 + |u|) / 3, u = -8 d / (size - 1);  dy and dx: as d, of the positions on the axes y and x"
)
T5_AXES = (
    "S_ij = scale * q_i . k_j + sum_c bias_c[bucket(d_c), h] over the sequence, x and y, d_c: as d, of the "
    "positions on axis c;  O_i = sum_j softmax(S)_ij v_j;  " + BUCKETS
)
RELATIVE_AXES = (
    "S_ij = scale * (q_i . k_j + sum_c q_i . RK_c[d_c]) over the sequence, time and pitch, d_c: as d, of the "
    "positions on axis c;  O_i = sum_j softmax(S)_ij v_j;  RK = relative_keys"
)
ROPE = (
    "S_ij = scale * (Rot(i) q_i) . (Rot(j) k_j);  O_i = sum_j softmax(S)_ij v_j;  Rot(p) turns pair t of the first "
    "rotary_dim features by p * base^(-2 t / rotary_dim), "
)
HALVES = "pair t: features t and t + rotary_dim / 2"
NEIGHBOURS = "pair t: features 2 t and 2 t + 1"
YARN_ANGLES = (
    "; the angle is multiplied by g + (1 - g) / factor, g = 1 up to pair b, 0 from pair e on, linear in t between; b "
    "and e are the t, b rounded down and e up, at which a pair turns beta_fast and beta_slow times within "
    "L = original_max_position_embeddings positions: t = rotary_dim log(L / (2 pi turns)) / (2 log(base)); the rotated "
    "features are multiplied by 0.1 ln(factor) + 1"
)
LLAMA3_ANGLES = (
    "; the angle is multiplied by g + (1 - g) / factor, g = (n_t - low_freq_factor) / (high_freq_factor - "
    "low_freq_factor) within 0 .. 1; n_t = L base^(-2 t / rotary_dim) / (2 pi): how often the pair turns within "
    "L = original_max_position_embeddings positions"
)
LENGTH = (
    "L = original_max_position_embeddings; the length of keys is their largest position + 1, the length of queries the "
    "largest position of queries and keys + 1"
)
DYNAMIC_ANGLES = (
    "; base is multiplied by g^(rotary_dim / (rotary_dim - 2)), g = factor max(length, L) / L - (factor - 1), " + LENGTH
)
LONGROPE_ANGLES = (
    "; the angle of pair t is divided by short_factor[t] where length <= L, else by long_factor[t]; rotated features "
    "are multiplied by sqrt(1 + ln(factor) / ln(L)), " + LENGTH
)
DEBERTA = (
    "S_ij = scale * (q_i . k_j + q_i . (W_k P[t] + w_k) + (W_q P[t] + w_q) . k_j);  O_i = sum_j softmax(S)_ij v_j;  "
)
CLIPPED = "t = min(max(i - j + K, 0), 2 K - 1), K = max_distance"
BUCKETED = (
    "t = min(max(bucket(i - j) + K, 0), 2 K - 1), K = num_buckets, m = K / 2;  bucket(x) = x where |x| <= m, else "
    "sign(x) (m + ceil((m - 1) log(|x| / m) / log((max_distance - 1) / m)))"
)
SUM = (
    "S_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j] + q_i . RK[c]) + bias[bucket(d), h];  "
    "O_i = sum_j softmax(S)_ij (v_j + RV[c]);  " + CLIP + ", RV = relative_values" + SINES_FIRST + ";  " + BUCKETS
)
KEY_BIAS = (
    "S_ij = scale * q_i . k_j + a_j;  O_i = sum_j softmax(S)_ij v_j;  a = key_bias.  Forgetting Transformer's gates "
    "are a_j = -F_j, F_j = log f_1 + ... + log f_j, under causality"
)
SOFTCAP = "S_ij = softcap * tanh(scale * q_i . k_j / softcap);  O_i = sum_j softmax(S)_ij v_j"
SOFTCAP_ALIBI = (
    "S_ij = softcap * tanh((scale * q_i . k_j - slope_h |d|) / softcap) + a_j;  O_i = sum_j softmax(S)_ij v_j;  "
    "a = key_bias;  the slopes are those of alibi_4_heads, for 2 heads"
)
SINKS = (
    "S_ij = scale * q_i . k_j;  w_ij = exp(S_ij) / (exp(sinks_h) + sum_j' exp(S_ij'));  O_i = sum_j w_ij v_j;  the "
    "weights are w, and lse is that of S"
)

VASWANI = "Vaswani et al. 2017, eq. 1"
SHAW = "Shaw, Uszkoreit and Vaswani 2018, eq. 1 to 4"
HUANG = "Huang et al. 2018 (Music Transformer), section 3.4"
DAI = "Dai et al. 2019 (Transformer-XL), section 3.3"
RAFFEL = "Raffel et al. 2020 (T5), section 2.1, and the buckets of its published code"
PRESS = "Press, Smith and Lewis 2022 (ALiBi), section 3, and the slopes of its published code"
CHI = "Chi et al. 2022 (KERPLE), the logarithmic and the power variant"
CHI_2023 = "Chi et al. 2023 (Sandwich), the frequencies and ratios as in attention-gym's"
SU = "Su et al. 2021 (RoFormer), eq. 14, 15 and 34"
PENG = "Peng et al. 2023 (YaRN), section 3.4, and its published code's ramp"
HUGGING_FACE = "Hugging Face's transformers 5.23, rope_type dynamic"
DING = "Ding et al. 2024 (LongRoPE), as in Hugging Face's transformers 5.23, rope_type longrope"
LLAMA = "Llama 3.1's published code"
HE = "He et al. 2021 (DeBERTa), eq. 3 and 4, and its published code, whose third term reads the row of the second"
LIN = "Lin, Nikishin, He and Courville 2025 (Forgetting Transformer), section 3"
GEMMA = "Gemma Team 2024 (Gemma 2), section 2"
OPENAI = "OpenAI 2025 (gpt-oss), section 2.3, and its published code"
LIU = "Liu et al. 2021 (Swin Transformer), eq. 4, and the rows of its published code"
BAO = "Bao et al. 2022 (BEiT), and the rows of its published code"
LIU_2022 = "Liu et al. 2022 (Swin Transformer V2), section 3.3, and its published code"
HUANG_2022 = "Huang et al. 2022 (LayoutLMv3), its published code's biases divided by sqrt(D)"
CHEN = "Chen et al. 2023 (position interpolation), section 2.3"
